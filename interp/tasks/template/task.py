"""Template tasks (`template` §2.1): all strings of a template share its label.

    string = template with its wildcards replaced by distinct symbols
    real label      a number per template                      (same/different: αα → +1, αβ → −1)
    symbolic label  a wildcard of the template, or a token     (copying: αβα → β)

The answer is predicted at the last position. Training and test substitute from disjoint ranges of
symbols, so at test time every symbol is unseen; ``task.unseen()`` is the test task. Ids: regular
tokens first, by code point, then the symbols.

Latents: ``template`` (index), ``substitution`` (the id that replaces each wildcard, −1 if the
template lacks it), ``equality`` (the matrix XXᵀ: row t says which positions have the token of t)
and, for symbolic labels, ``source`` (the first position that holds the answer, −1 if none does).

A model that is right on unseen symbols need not have found the templates: with few of them a
shortcut (the last row of the equality matrix) can be enough.

*Substitutions.* Symbols are drawn one after another without replacement with weights w_k, uniform
(w_k = 1) or Zipf (w_k = k^{−s}, rank k from 1). They are drawn by exponential clocks: symbol k gets
the time E_k / w_k with E_k exponential, and the symbols with the smallest times are taken, in
order.

The diversity ρ of a task (`template` §2.1) is the reciprocal of the largest probability that any
fixed symbol is substituted. With m wildcards and p_k = w_k / Σw that is, for the heaviest symbol,

    1/ρ = P(fewer than m others come before it) = ∫_0^1 P(#{j: before t} < m) du,  u = e^{−p_1 t}

where the others independently come before t with probability 1 − u^{p_j/p_1}. ρ says nothing about
how well symbols of the tail are learned.

*A template* is a string such as ``αβα``: small Greek letters are wildcards, every other character
is a regular token that stands for itself (``αβα→``). A substitution maps wildcards injectively to
symbols that are no regular tokens, so two templates can give the same string exactly if they are
equal up to renaming wildcards: :func:`canonical` renames them by first appearance.

*Named tasks* of the paper and of cognitive science (`template` §2.1) are functions that return a
:class:`~interp.tasks.template.task.TemplateTask`; keywords (``train``, ``test``, ``substitution``
…) are passed on. Layouts that the literature shows as pictures are written as strings in reading
order; the choice of layout is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, permutations, product
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from interp.errors import Problems, need
from interp.tasks.base import Batch, sampler
from interp.tasks.counterfactual import UNKNOWN, Variable

GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
_REGULAR = "abcdefghijklmnopqrstuvwxyz"
_ATTEMPTS = 1000


def is_wildcard(character: str) -> bool:
    """Return whether a character of a template is a wildcard (a small Greek letter of
    :data:`GREEK`)."""
    return character in GREEK


def wildcards(template: str) -> tuple[str, ...]:
    """Return the wildcards of a template, each once, in the order in which they first appear."""
    return tuple(c for c in dict.fromkeys(template) if is_wildcard(c))


def regular_tokens(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the regular tokens of several templates or labels, each once, sorted by code point."""
    return tuple(sorted(dict.fromkeys(c for text in texts for c in text if not is_wildcard(c))))


def canonical(template: str) -> str:
    """Return the template with its wildcards renamed α, β, … by first appearance.

    Two templates are equivalent, and give the same strings, iff their canonical forms are equal.
    """
    renamed = dict(zip(wildcards(template), GREEK, strict=False))
    return "".join(renamed.get(c, c) for c in template)


def random_templates(
    count: int, length: int, *, wildcards: int, regular: int = 0, seed: int = 0
) -> tuple[str, ...]:
    """Draw distinct random templates of one length, none equivalent to another, in canonical form.

    Args:
        count: How many templates to draw.
        length: Characters of each template.
        wildcards: The number of different wildcards in each.
        regular: The number of positions with a regular token, drawn from as many different letters.
        seed: Seed of the draw, which is the same on every machine.

    Raises:
        ArgumentError: if wildcards and regular tokens do not fit into the length, or if fewer than
            ``count`` such templates exist.
    """
    problems = Problems("random_templates")
    free, rule = length - regular, "must leave a position for every wildcard"
    fits = 0 <= wildcards <= free and (wildcards > 0 or free == 0)
    problems.need(count >= 1, "count", "must be at least 1", count, "raise it")
    problems.need(fits, "length", rule, (length, wildcards, regular), "lengthen the templates")
    names = wildcards <= len(GREEK) and 0 <= regular <= len(_REGULAR)
    rule = f"must be at most {len(GREEK)} and {len(_REGULAR)}"
    problems.need(names, "wildcards, regular", rule, (wildcards, regular), "use fewer")
    problems.raise_if_any()
    rng = np.random.default_rng([seed, length, wildcards, regular])
    found: dict[str, None] = {}
    for _ in range(_ATTEMPTS * count):
        found[canonical(_draw(length, wildcards, regular, rng))] = None
        if len(found) == count:
            return tuple(found)
    rule = f"must be at most the number of such templates ({len(found)} were found)"
    problems.need(False, "count", rule, count, "ask for fewer or lengthen them")
    problems.raise_if_any()
    return ()


def _draw(length: int, wildcards: int, regular: int, rng: np.random.Generator) -> str:
    """Draw a template with every wildcard at least once and regular tokens at random positions."""
    extra: Iterable[int] = []
    if wildcards:
        extra = rng.integers(wildcards, size=length - regular - wildcards)
    letters = [GREEK[i] for i in (*range(wildcards), *extra)]
    letters += [_REGULAR[i] for i in rng.integers(max(regular, 1), size=regular)]
    order: Int64[np.ndarray, "length"] = rng.permutation(length)
    return "".join(letters[i] for i in order)


Law = Literal["uniform", "zipf"]


def weights(law: str, symbols: int, exponent: float) -> Float64[np.ndarray, " symbol"]:
    """Return the probability of each symbol, by rank, under a :data:`Law`; they sum to 1."""
    rank = np.arange(1, symbols + 1, dtype=np.float64)
    weight = rank**-exponent if law == "zipf" else np.ones(symbols)
    return np.asarray(weight / weight.sum())


def draw_symbols(
    weight: Float64[np.ndarray, " symbol"], n: int, wildcards: int, generator: torch.Generator
) -> Int64[Tensor, "row wildcard"]:
    """Draw the symbols that n rows substitute for wildcards, as ranks from 0, distinct in each
    row."""
    uniform = torch.rand(n, len(weight), generator=generator, dtype=torch.float64)
    clocks = -torch.log1p(-uniform) / torch.from_numpy(weight)
    return clocks.topk(wildcards, dim=1, largest=False, sorted=True).indices


def diversity(weight: Float64[np.ndarray, " symbol"], wildcards: int) -> float:
    """Return the diversity ρ for templates of at most ``wildcards`` wildcards; infinite without
    any."""
    if wildcards == 0:
        return float("inf")
    if np.ptp(weight) == 0:
        return len(weight) / wildcards
    from scipy.integrate import quad

    share = weight[1:] / weight[0]
    probability, _ = quad(lambda u: _fewer(1 - u**share, wildcards), 0, 1, limit=200)
    return 1 / float(probability)


def _fewer(rung: Float64[np.ndarray, " symbol"], m: int) -> float:
    """Return the probability that fewer than m of several independent events happen."""
    count = np.zeros(m)
    count[0] = 1.0
    for p in rung:
        count[1:] = count[1:] * (1 - p) + count[:-1] * p
        count[0] *= 1 - p
    return float(count.sum())


_SPLITS = ("train", "test")


@dataclass(frozen=True)
class TemplateTask:
    """The task of predicting a template's label from strings of the template.

    Attributes:
        templates: Strings of one length, no two equivalent; small Greek letters are wildcards.
        labels: One label per template: numbers, or single characters (wildcards of the template or
            regular tokens).
        train: The training alphabet: its first symbol and one past its last.
        test: The test alphabet in the same form; disjoint from ``train``.
        split: The alphabet that rows are drawn from, ``train`` or ``test``.
        substitution: ``uniform`` or ``zipf`` (the alphabet's k-th symbol has weight k^−exponent).
        exponent: Exponent of Zipf's law; 1.0 without it.
        title: The part of the task's name that replaces the templates.

    Raises:
        ArgumentError: naming every argument that breaks a rule; equivalent templates and
            overlapping alphabets are named in pairs.
    """

    templates: tuple[str, ...]
    labels: tuple[float, ...] | tuple[str, ...]
    train: tuple[int, int] = (0, 64)
    test: tuple[int, int] = (64, 128)
    split: str = "train"
    substitution: str = "uniform"
    exponent: float = 1.0
    title: str = ""

    def __post_init__(self) -> None:
        problems = Problems("TemplateTask")
        _check_templates(self.templates, problems)
        _check_labels(self, problems)
        _check_alphabets(self, problems)
        rule = f"must be one of {', '.join(get_args(Law))}"
        need = problems.need
        need(self.substitution in get_args(Law), "substitution", rule, self.substitution, "pick")
        need(self.split in _SPLITS, "split", "must be train or test", self.split, "pick one")
        idle = self.substitution == "zipf" or self.exponent == 1.0
        need(idle, "exponent", "has no effect without zipf", self.exponent, "leave it 1.0")
        need(self.exponent > 0, "exponent", "must be positive", self.exponent, "raise it")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``template-same-different-unseen``."""
        told = self.title or "-".join(self.templates)
        return f"template-{told}" + ("-unseen" if self.split == "test" else "")

    @property
    def length(self) -> int:
        """Positions of a row."""
        return len(self.templates[0])

    @property
    def symbolic(self) -> bool:
        """Whether the labels are tokens rather than numbers."""
        return isinstance(self.labels[0], str)

    @property
    def regular(self) -> tuple[str, ...]:
        """The regular tokens; a token's id is its index here."""
        labels = tuple(label for label in self.labels if isinstance(label, str))
        return regular_tokens((*self.templates, *labels))

    @property
    def symbols(self) -> range:
        """The ids that a wildcard may stand for."""
        first, stop = self.train if self.split == "train" else self.test
        return range(len(self.regular) + first, len(self.regular) + stop)

    @property
    def vocabulary(self) -> int:
        """Number of ids: regular tokens, then the symbols of both alphabets."""
        return len(self.regular) + max(self.train[1], self.test[1])

    @property
    def diversity(self) -> float:
        """ρ: the reciprocal of the largest probability that a fixed symbol is substituted."""
        return diversity(self._weights, max(len(wildcards(z)) for z in self.templates))

    def unseen(self) -> TemplateTask:
        """Return the same task on the test alphabet, with uniform substitution."""
        return replace(self, split="test", substitution="uniform", exponent=1.0)

    def equality(self, template: int) -> Float64[np.ndarray, "pos pos"]:
        """Return the equality matrix XXᵀ of any string of a template: 1 where two positions have
        one token."""
        letters = np.array(list(self.templates[template]))
        return (letters[:, None] == letters).astype(np.float64)

    def source(self, template: int) -> int:
        """Return the first position that holds a template's label; −1 if none does."""
        return self.templates[template].find(str(self.labels[template])) if self.symbolic else -1

    def answers(self) -> dict[str, tuple[str, ...]]:
        """Return the name of the latent that holds the answer, mapped to no inputs (they are not
        named).

        For token labels it is ``source``, the position that the answer is copied from (−1 if no
        position holds it); for real labels it is ``label``, the number itself.
        """
        return {"source" if self.symbolic else "label": ()}

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos]``; targets ``[batch, pos, 1]``, or ids for token
        labels.

        Templates are drawn uniformly, then their substitutions.
        """
        generator = torch.Generator().manual_seed(seed)
        index = torch.randint(len(self.templates), (n,), generator=generator)
        most = max(len(wildcards(z)) for z in self.templates)
        start = len(self.regular) + (self.train if self.split == "train" else self.test)[0]
        symbols = start + draw_symbols(self._weights, n, most, generator)
        slots = self._slots()
        tokens = torch.cat((torch.arange(len(self.regular)).expand(n, -1), symbols), dim=1)
        inputs = tokens.gather(1, slots[index, : self.length])
        return self._batch(inputs, tokens, index, slots).to(device)

    def every_row(self) -> Iterator[tuple[tuple[int, ...], int | float]]:
        """Yield every string by its ids, with its label (token labels: the id), template by
        template."""
        for template, label in zip(self.templates, self.labels, strict=True):
            wild, real = sorted(set(template) - set(self.regular)), cast("Any", label)
            token = {letter: place for place, letter in enumerate(self.regular)}
            for drawn in permutations(self.symbols, len(wild)):
                token |= dict(zip(wild, drawn, strict=True))
                answer = token[label] if isinstance(label, str) else float(real)
                yield tuple(token[letter] for letter in template), answer

    def by_last_and_answer(
        self,
    ) -> list[tuple[list[int], Int64[np.ndarray, "cell letter"], Int64[np.ndarray, " cell"]]]:
        """Group all strings by their last token and the answer, for templates with tokens as
        labels.

        Returns:
            For each template the letter at each position (regular tokens first, then wildcards as
            they appear); for each cell the id of each letter, −1 if it may be any other symbol; and
            the id of the answer.

        Raises:
            ValueError: if labels are numbers.
        """
        if not self.symbolic:
            raise ValueError("labels are numbers")
        found = []
        for text, label in zip(self.templates, map(str, self.labels), strict=True):
            letters = [*self.regular, *wildcards(text)]
            given = [letters.index(c) for c in dict.fromkeys((text[-1], label)) if is_wildcard(c)]
            drawn = np.array(list(permutations(self.symbols, len(given))), dtype=np.int64)
            cells = np.full((len(drawn), len(letters)), -1, dtype=np.int64)
            cells[:, : len(self.regular)] = np.arange(len(self.regular))
            cells[:, given] = drawn
            found.append(([letters.index(c) for c in text], cells, cells[:, letters.index(label)]))
        return found

    def variables(self) -> Iterator[Variable]:
        """Yield ``label`` for real labels; for symbolic ones the ``source`` position, if templates
        differ in it, and the ``answer`` itself."""
        sources = {self.source(i) for i in range(len(self.templates))}
        if self.symbolic and len(sources) > 1:
            yield Variable("source", _answer_at_source)
        name = "answer" if self.symbolic else "label"
        yield Variable(name, lambda base, source: source.targets)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "template", **asdict(self)}

    @property
    def _weights(self) -> Float64[np.ndarray, " symbol"]:
        first, stop = self.train if self.split == "train" else self.test
        return weights(self.substitution, stop - first, self.exponent)

    def _slots(self) -> Tensor:
        """Return the regular token or wildcard at each position, and as the label (0 for a real
        one), ``[template, pos + 1]``. The numbers of wildcards follow those of the regular
        tokens."""
        rows = []
        for template, label in zip(self.templates, self.labels, strict=True):
            place = {token: i for i, token in enumerate((*self.regular, *wildcards(template)))}
            letters = (*template, label) if isinstance(label, str) else template
            rows.append([place[c] for c in letters] + [0] * (not isinstance(label, str)))
        return torch.tensor(rows)

    def _batch(self, inputs: Tensor, tokens: Tensor, index: Tensor, slots: Tensor) -> Batch:
        n, length = inputs.shape
        counts = torch.tensor([len(wildcards(z)) for z in self.templates])
        lacks = torch.arange(tokens.shape[1] - len(self.regular)) >= counts[index, None]
        substitution = tokens[:, len(self.regular) :].masked_fill(lacks, -1)
        mask = torch.zeros(n, length, dtype=torch.bool)
        mask[:, -1] = True
        latents = {
            "template": index[:, None].expand(-1, length).clone(),
            "substitution": substitution[:, None].expand(-1, length, -1).clone(),
            "equality": (inputs[:, :, None] == inputs[:, None]).float(),
        }
        if self.symbolic:
            sources = torch.tensor([self.source(i) for i in range(len(self.templates))])
            latents["source"] = sources[index][:, None].expand(-1, length).clone()
            targets = tokens.gather(1, slots[index, -1:]) * mask
        else:
            labels = torch.tensor(self.labels, dtype=torch.float32)
            latents["label"] = labels[index][:, None].expand(-1, length).clone()
            targets = (latents["label"] * mask)[..., None]
        return Batch(inputs, targets, mask, latents)


def _answer_at_source(base: Batch, source: Batch) -> Tensor:
    """Return the base's token at the position of the source row's answer."""
    at = source.latents["source"]
    return base.inputs.gather(1, at.clamp_min(0)).masked_fill(at < 0, UNKNOWN)


def _check_templates(templates: tuple[str, ...], problems: Problems) -> None:
    need = problems.need
    texts = len(templates) > 0 and all(isinstance(z, str) and z for z in templates)
    need(texts, "templates", "must be texts, at least one", templates, 'e.g. ("αα", "αβ")')
    problems.raise_if_any()
    lengths = {len(z) for z in templates}
    need(len(lengths) == 1, "templates", "must have one length", templates, "pad with a token")
    spaced = any(c.isspace() for z in templates for c in z)
    need(not spaced, "templates", "must not contain spaces", templates, "a character is a token")
    for (i, one), (j, other) in combinations(enumerate(templates), 2):
        same = canonical(one) == canonical(other)
        rule = f"{i} ({one}) and {j} ({other}) are equivalent: every string of one matches both"
        need(not same, "templates", rule, canonical(one), "drop one of them")


def _check_labels(task: TemplateTask, problems: Problems) -> None:
    need, labels = problems.need, task.labels
    rule = f"must be one per template ({len(task.templates)})"
    need(len(labels) == len(task.templates), "labels", rule, labels, "give each template a label")
    kinds = [isinstance(label, str) for label in labels]
    real = all(isinstance(v, int | float) and not isinstance(v, bool) for v in labels)
    need(real or all(kinds), "labels", "must be all numbers or all characters", labels, "choose")
    for template, label in zip(task.templates, labels, strict=False):
        if isinstance(label, str):
            one = len(label) == 1 and not label.isspace()
            known = not is_wildcard(label) or label in template
            rule = f"must be a wildcard of {template} or a regular token"
            need(one and known, "labels", rule, label, "correct it")


def _check_alphabets(task: TemplateTask, problems: Problems) -> None:
    need = problems.need
    most = max(len(wildcards(z)) for z in task.templates)
    for name, (first, stop) in _alphabets(task):
        size = (first, stop)
        need(0 <= first < stop, name, "must be (first, one past the last)", size, "order them")
        rule = f"must have a symbol for each of {most} wildcards"
        need(stop - first >= most, name, rule, size, "enlarge the alphabet")
    overlap = max(task.train[0], task.test[0]) < min(task.train[1], task.test[1])
    rule = f"must be disjoint from train {task.train}: test symbols are unseen"
    need(not overlap, "test", rule, task.test, "move it")


def _alphabets(task: TemplateTask) -> Iterator[tuple[str, tuple[int, int]]]:
    yield "train", task.train
    yield "test", task.test


def same_different(**options: Any) -> TemplateTask:
    """Make the task of telling αα (label +1) and αβ (label −1) apart: are two symbols the same?"""
    return TemplateTask(("αα", "αβ"), (1.0, -1.0), title="same-different", **options)


def aba_abb(**options: Any) -> TemplateTask:
    """Make the task of telling αβα (label +1) and αββ (label −1) apart."""
    return TemplateTask(("αβα", "αββ"), (1.0, -1.0), title="aba-abb", **options)


def aabb_abab(**options: Any) -> TemplateTask:
    """Make the task of telling the templates ααββ (label +1) and αβαβ (label −1) apart.

    The last row of the matrix that says which tokens of a string are equal is enough for this.

    Args:
        **options: Other arguments of :class:`TemplateTask`, such as ``train``.
    """
    return TemplateTask(("ααββ", "αβαβ"), (1.0, -1.0), title="aabb-abab", **options)


def majority(length: int = 3, **options: Any) -> TemplateTask:
    """Make the task of telling which of two symbols, in any order, occurs more often; this symbol
    is the label.

    Raises:
        ArgumentError: if the length is even, or beyond 9 (2^(length−1) templates).
    """
    good = 3 <= length <= 9 and length % 2 == 1
    need("majority", good, "length", "must be odd, from 3 to 9", length, "a tie has no majority")
    templates = tuple("α" + "".join(rest) for rest in product("αβ", repeat=length - 1))
    labels = tuple("α" if 2 * z.count("α") > length else "β" for z in templates)
    return TemplateTask(templates, labels, title=f"majority-{length}", **options)


def match_to_sample(**options: Any) -> TemplateTask:
    """Make the task relational match to sample: which of two pairs has the relation of the sample
    pair?

    A row is the sample, the first pair and the second pair; the label is +1 for the first pair and
    −1 for the second.
    """
    rows = {"ααββγδ": 1.0, "ααβγδδ": -1.0, "αβγδεε": 1.0, "αβγγδε": -1.0}
    return TemplateTask(tuple(rows), tuple(rows.values()), title="match-to-sample", **options)


def distribution_of_three(**options: Any) -> TemplateTask:
    """Make the task of naming the missing object: three objects, then two of them in any order."""
    rows = {
        f"αβγ{one}{two}": ({*"αβγ"} - {one, two}).pop()
        for one, two in product("αβγ", repeat=2)
        if one != two
    }
    return TemplateTask(tuple(rows), tuple(rows.values()), title="distribution-of-three", **options)


def identity_rules(**options: Any) -> TemplateTask:
    """Make the task of completing a pattern of three objects after one example.

    A row is one example of a rule (ABA, ABB or AAA) and the first two objects of a second triple,
    in new symbols; the label is the object that completes the second triple by the same rule.
    """
    rows = {"αβαγδ": "γ", "αββγδ": "δ", "αααββ": "β"}
    return TemplateTask(tuple(rows), tuple(rows.values()), title="identity-rules", **options)


def copying(template: str = "αβα", source: str = "β", **options: Any) -> TemplateTask:
    """Make the task of copying the symbol that replaces one wildcard of a template.

    Args:
        template: The only template of the task.
        source: The wildcard whose symbol is the label.
        options: Further arguments of :class:`TemplateTask`.
    """
    return TemplateTask((template,), (source,), title=f"copying-{template}-{source}", **options)


def induction_style(length: int = 5, **options: Any) -> TemplateTask:
    """Make a task of distinct symbols, then one of them again; the label is the symbol that
    followed it.

    There is one template for each position but the last, so no fixed position can be copied.

    Raises:
        ArgumentError: if there are fewer than three or more than ten positions.
    """
    problems, good = Problems("induction_style"), 3 <= length <= 10
    problems.need(good, "length", "must be from 3 to 10", length, "symbols, then one again")
    problems.raise_if_any()
    seen = GREEK[: length - 1]
    templates = tuple(seen + c for c in seen[:-1])
    return TemplateTask(templates, tuple(seen[1:]), title=f"induction-{length}", **options)


def random_task(
    count: int,
    length: int,
    *,
    wildcards: int,
    regular: int = 0,
    symbolic: bool = False,
    seed: int = 0,
    **options: Any,
) -> TemplateTask:
    """Make a task of random templates with alternating or symbolic labels.

    Real labels alternate ±1. A symbolic label is the wildcard at a position that depends on the
    seed and the template's number.
    """
    templates = random_templates(count, length, wildcards=wildcards, regular=regular, seed=seed)
    title = f"random-{count}x{length}-{wildcards}w{regular}r-{seed}"
    if not symbolic:
        labels = tuple(1.0 if i % 2 == 0 else -1.0 for i in range(count))
        return TemplateTask(templates, labels, title=title, **options)
    sources = tuple(template[(seed + 3 * i) % length] for i, template in enumerate(templates))
    return TemplateTask(templates, sources, title=title + "-symbolic", **options)


NAMED = {
    "same-different": same_different,
    "aba-abb": aba_abb,
    "aabb-abab": aabb_abab,
    "majority": majority,
    "match-to-sample": match_to_sample,
    "distribution-of-three": distribution_of_three,
    "identity-rules": identity_rules,
    "copying": copying,
    "induction-style": induction_style,
}
"""Name of each shipped template task → the function that makes it; all its arguments have
defaults."""
