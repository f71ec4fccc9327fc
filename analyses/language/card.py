"""Write what was trained: GPT-2 folders of Hugging Face's, with tokenizer, numbers and a card.

config.json, model.safetensors          GPT-2, float16
tokenizer.json, tokenizer_config.json   the vocabulary
training.json                           what it was trained by, on what, and what was measured
README.md                               the same for a reader
step-N/                                 the same of the weights after N steps
"""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from torch import Tensor

from analyses.language.corpus import LIBRARY
from analyses.language.measure import Measured, measure
from analyses.language.model import GPT2, write_gpt2
from analyses.language.recipe import LanguageRecipe
from analyses.language.tokens import write_tokenizer
from analyses.language.train import LanguageRun
from prooflens.architectures import read_tensors
from prooflens.files import output_folder

__all__ = ["is_made_by_language", "write_language"]

_NUMBERS, _WIDTH = "training.json", 110
_TERMS = (
    "Python's sources are under the Python Software Foundation License, Version 2; the text "
    "itself is not part of this model. Who trains it anew trains on the sources of the "
    "interpreter at hand."
)
_MIXED = (
    "Some rows repeat a passage, because plain text repeats itself too seldom for induction "
    "heads to form in this time: a passage of the text (repeated), or one of tokens drawn by "
    "their frequency (shuffled; only what can be known is scored there)."
)
_MEASURED = (
    "On held-out files. Losses in nats a token: of text; of passages of 50 tokens that stand "
    "twice, the first and the second time; of passages of 50 tokens drawn by their frequency, "
    "the second time. Largest shares of attention, and the head (layer.head): from the second "
    "time to the token after the earlier equal one (induction), and from any token to the one "
    "before (previous)."
)


def is_made_by_language(place: Path, recipe: LanguageRecipe) -> bool:
    """Return whether a folder holds the files that training by a recipe writes."""
    file = place / _NUMBERS
    if not file.is_file():
        return False
    found: bool = json.loads(file.read_text("utf-8")).get("recipe_sha256") == recipe.sha256
    return found


def write_language(training: LanguageRun, out: Path, *, overwrite: bool) -> dict[str, float]:
    """Write the model and those kept on the way.

    Args:
        training: A training that has taken all its steps.
        out: The folder to write; a failure leaves no half-written one.
        overwrite: Replace an existing folder of this kind.

    Returns:
        The metrics of the weights as they are written, in float16: ``loss`` (nats a token of
        held-out text), ``gap``, ``induction`` and ``previous``.

    Raises:
        OutputError: if the folder exists and may not be replaced, or cannot be written.
    """
    weights = {training.step: training.model.weights_by_name()}
    for step in training.recipe.training.kept:
        weights[step] = read_tensors(training.folder / f"step-{step}.safetensors")[0]
    found = {}
    with output_folder(out, overwrite=overwrite, marker=_NUMBERS) as draft:
        for step, tensors in weights.items():
            place = draft if step == training.step else draft / f"step-{step}"
            place.mkdir(exist_ok=True)
            found[step] = _write(training, step, tensors, place)
        _tell(training, dict(sorted(found.items())), draft)
    return metrics_of(found[training.step])


def metrics_of(measured: Measured) -> dict[str, float]:
    """Return the metrics for which recipes have bounds."""
    return {
        "loss": measured.plain,
        "gap": measured.first - measured.second,
        "induction": measured.induction,
        "previous": measured.previous,
    }


@torch.no_grad()
def _write(training: LanguageRun, step: int, weights: dict[str, Tensor], place: Path) -> Measured:
    """Write one model's folder, and return what is measured of the weights as written."""
    from tokenizers import Tokenizer

    model = GPT2(training.recipe.model)
    for name, weight in model.weights_by_name().items():
        weight.copy_(weights[name].half())
    write_gpt2(model, place)
    tokenizer = Tokenizer.from_file(str(training.folder / "tokenizer.json"))
    write_tokenizer(tokenizer, place, training.recipe.model.context)
    return measure(model, training.held_out)


def _tell(training: LanguageRun, found: dict[int, Measured], folder: Path) -> None:
    recipe = training.recipe
    numbers: dict[str, Any] = {
        "name": recipe.name,
        "about": recipe.about,
        "recipe": recipe.to_dict(),
        "recipe_sha256": recipe.sha256,
        "text": training.about,
        "tokens_of_text": len(training.text),
        "tokens_held_out": len(training.held_out),
        "tokens_read": recipe.tokens,
        "parameters": sum(weight.numel() for weight in training.model.parameters()),
        "processor_seconds": round(training.seconds),
        "measured": {str(step): measured.to_dict() for step, measured in found.items()},
        "log": training.log(),
    }
    text = json.dumps(numbers, indent=1, ensure_ascii=False)
    (folder / _NUMBERS).write_text(text + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(numbers, recipe, found), encoding="utf-8")


def _card(numbers: dict[str, Any], recipe: LanguageRecipe, found: dict[int, Measured]) -> str:
    sizes, missed = recipe.model, recipe.missed_bounds(metrics_of(found[max(found)]))
    origin = numbers["text"]["origin"]
    minutes = numbers["processor_seconds"] / 60
    verdict = f"It misses: {'; '.join(missed)}." if missed else "It reaches what its recipe asks."
    parts = [
        f"# {recipe.name}",
        f"{recipe.about[0].upper()}{recipe.about[1:]}. {numbers['parameters']:,} parameters: width "
        f"{sizes.width}, {sizes.layers} layers of {sizes.heads} heads, context {sizes.context}, "
        f"{sizes.vocabulary:,} byte-level BPE tokens trained on the same text. The weights are "
        "in float16. It is there to be looked into, not to write code. Every row it learned from "
        "begins with `<|endoftext|>`: without it in front, its losses are higher.",
        "## What it learned from",
        f"{origin[0].upper()}{origin[1:]}: {numbers['tokens_of_text']:,} tokens; one file of "
        f"{recipe.held_out} is held out by its digest ({numbers['tokens_held_out']:,} tokens)."
        + (f" {_TERMS}" if origin.startswith(LIBRARY) else ""),
        f"{numbers['tokens_read']:,} tokens were read in {recipe.steps:,} steps, {minutes:.0f} "
        f"minutes of processor time. {_MIXED}",
        _table(
            ("steps", "rows × tokens", "repeated", "shuffled"),
            [
                (f"{s.steps:,}", f"{s.rows} × {s.length}", f"{s.repeated:.0%}", f"{s.shuffled:.0%}")
                for s in recipe.stages
            ],
        ),
        "## What it does",
        f"{_MEASURED} {verdict}",
        _table(
            ("step", "text", "first → second time", "shuffled", "induction", "previous"),
            [_line(step, measured) for step, measured in found.items()],
        ),
    ]
    wide = [part if part[0] in "#|" else fill(part, _WIDTH) for part in parts]
    return "\n\n".join(wide) + "\n"


def _line(step: int, found: Measured) -> tuple[str, ...]:
    """Return a row of the card's table: losses in nats per token, shares of attention, and their
    heads."""
    return (
        f"{step:,}",
        f"{found.plain:.2f}",
        f"{found.first:.2f} → {found.second:.2f}",
        f"{found.shuffled:.2f}",
        f"{found.induction:.2f} ({found.induction_head})",
        f"{found.previous:.2f} ({found.previous_head})",
    )


def _table(names: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [names, ("---",) * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
