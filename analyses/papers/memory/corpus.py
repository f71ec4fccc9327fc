"""Text for the language claims: a small generated language of stories, or the user's own file.

*Generated*: every row is a story of three people, word by word.

    Ada has the red key .        a fact                    who, colour and thing are new
    the key of Ada is red .      a recollection            the colour follows from the story
    Ada goes to the mill .       a move
    Ada is in the mill .         a report                  the place is that of the last move
    then she sings .             a pronoun                 it is that of the last person named

What can be predicted beyond the grammar lies some way back, at a place that the words say: the
language was made so, as natural language is in part. A claim that holds here holds for such
dependencies; how much of a natural text they are, the user's file tells.

*File*: characters of UTF-8 text, the ``words − 1`` most frequent of the file and one for all
others; the first nine tenths are trained on, the last tenth is for the metrics. That tenth must
hold twenty rows: a loss on less is one of chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from prooflens.errors import ArgumentError, Problems
from prooflens.tasks import Batch

__all__ = ["Corpus"]

_WOMEN = ("Ada", "Eve", "Ida", "Mia", "Una", "Zoe")
_MEN = ("Abe", "Ben", "Dan", "Jim", "Leo", "Sam")
_COLOURS = ("red", "blue", "green", "black", "white", "brown", "grey", "pink")
_THINGS = ("key", "hat", "cup", "bag", "lamp", "book", "coat", "bell", "rope", "coin")
_PLACES = ("mill", "barn", "town", "park", "house", "wood", "shop", "yard")
_ACTS = ("sings", "sleeps", "waits", "laughs")
_REST = (".", "the", "has", "of", "is", "goes", "to", "in", "then", "she", "he")
_WORDS = (*_REST, *_WOMEN, *_MEN, *_COLOURS, *_THINGS, *_PLACES, *_ACTS)
_ID = {word: number for number, word in enumerate(_WORDS)}
_PEOPLE = 3
_HELD_OUT = 0.1
_LEAST_ROWS = 20  # of the part that is held out


@dataclass(frozen=True)
class Corpus:
    """Next-token prediction on stories or on excerpts of a file.

    Attributes:
        length: Tokens of a row.
        text: A text file; empty for the generated language.
        words: Size of the vocabulary for a text file.
        held_out: Rows come from the last tenth of the file; stories are always fresh.
        recalled: Only words that follow from what the story said before are scored: the colour in a
            recollection and the place in a report. Not for a file, of which nobody knows them.

    Raises:
        ArgumentError: for sizes out of range, or a file that cannot be read, is no text or is too
            short.
    """

    length: int = 48
    text: str = ""
    words: int = 64
    held_out: bool = False
    recalled: bool = False

    def __post_init__(self) -> None:
        problems = Problems("Corpus")
        problems.need(self.length >= 2, "length", "must be at least 2", self.length, "raise it")
        problems.need(self.words >= 2, "words", "must be at least 2", self.words, "raise it")
        known = not (self.text and self.recalled)
        problems.need(known, "recalled", "is not known of a file", self.text, "leave it out")
        problems.raise_if_any()
        if self.text:
            held = len(_characters(self.text, self.words))
            least = round(_LEAST_ROWS * self.length / _HELD_OUT)
            rule = f"{self.text} must have at least {least} characters"
            problems.need(held >= least, "text", rule, held, "take a longer one")
            problems.raise_if_any()

    @property
    def name(self) -> str:
        """The name of the source: ``stories``, or the file's name."""
        return Path(self.text).stem if self.text else "stories"

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary."""
        return self.words if self.text else len(_WORDS)

    def testing(self, *, recalled: bool = False) -> Corpus:
        """Return the same task on text that is not trained on. For stories ``recalled`` scores only
        the words that follow from what the story said before."""
        return replace(self, held_out=True, recalled=recalled)

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, pos]`` token ids, no latents."""
        rng = np.random.default_rng(seed)
        if self.text:
            tokens = _characters(self.text, self.words)
            cut = round(len(tokens) * (1 - _HELD_OUT))
            part = tokens[cut:] if self.held_out else tokens[:cut]
            starts = rng.integers(0, len(part) - self.length, size=n)
            rows = part[starts[:, None] + np.arange(self.length + 1)]
        else:
            rows = np.array([_story(rng, self.length + 1) for _ in range(n)])
        ids = torch.from_numpy(rows)
        mask = (
            torch.from_numpy(_recalls(rows)) if self.recalled else torch.ones(n, self.length).bool()
        )
        return Batch(ids[:, :-1].clone(), ids[:, 1:].clone(), mask).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "corpus", **asdict(self)}


def _recalls(rows: Int[np.ndarray, "row word"]) -> Bool[np.ndarray, "row pos"]:
    """Return a mask of the positions whose next word follows from the story: after "… of Ada is",
    and after "is in the"."""
    before = np.pad(rows, ((0, 0), (2, 0)), constant_values=_ID["."])
    third, second, last, after = before[:, :-3], before[:, 1:-2], rows[:, :-1], rows[:, 1:]
    colour = (last == _ID["is"]) & np.isin(after, [_ID[word] for word in _COLOURS])
    report = (third == _ID["is"]) & (second == _ID["in"]) & (last == _ID["the"])
    found: Bool[np.ndarray, "row pos"] = colour | report
    return found


def _story(rng: np.random.Generator, length: int) -> list[int]:
    people = rng.choice(len(_WOMEN) + len(_MEN), size=_PEOPLE, replace=False)
    names = [(*_WOMEN, *_MEN)[i] for i in people]
    owns: dict[str, tuple[str, str]] = {}
    places: dict[str, str] = {}
    words: list[str] = []

    def some(choices: tuple[str, ...]) -> str:
        return choices[int(rng.integers(len(choices)))]

    while len(words) < length:
        name = names[int(rng.integers(_PEOPLE))]
        words += _SENTENCES[int(rng.integers(len(_SENTENCES)))](name, owns, places, some)
        if rng.random() < 0.3:
            words += ["then", "she" if name in _WOMEN else "he", some(_ACTS), "."]
    return [_ID[word] for word in words[:length]]


Some = Callable[[tuple[str, ...]], str]


def _of_a_thing(
    name: str, owns: dict[str, tuple[str, str]], places: dict[str, str], some: Some
) -> list[str]:
    if name in owns:
        colour, thing = owns[name]
        return ["the", thing, "of", name, "is", colour, "."]
    colour, thing = owns[name] = some(_COLOURS), some(_THINGS)
    return [name, "has", "the", colour, thing, "."]


def _of_a_place(
    name: str, owns: dict[str, tuple[str, str]], places: dict[str, str], some: Some
) -> list[str]:
    if name in places and some(("stay", "go")) == "stay":
        return [name, "is", "in", "the", places[name], "."]
    places[name] = some(_PLACES)
    return [name, "goes", "to", "the", places[name], "."]


_SENTENCES = (_of_a_thing, _of_a_place)


@lru_cache(maxsize=4)
def _characters(path: str, words: int) -> np.ndarray:
    """Read a file as token ids: 1, 2, … for the most frequent characters, 0 for all others.

    Raises:
        ArgumentError: if the file cannot be read as text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(f"Corpus: text {path} is no text in UTF-8: {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"Corpus: text {path} cannot be read: {reason}") from error
    if "\0" in text:
        raise ArgumentError(f"Corpus: text {path} is no text: it holds zero bytes")
    frequent = [character for character, _ in Counter(text).most_common(words - 1)]
    number = {character: i for i, character in enumerate(frequent, start=1)}
    return np.array([number.get(character, 0) for character in text], dtype=np.int64)
