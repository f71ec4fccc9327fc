"""The named template tasks of the paper and of cognitive science (`template` §2.1).

Each function gives a :class:`~interp.tasks.template.task.TemplateTask`; keywords (``train``,
``test``, ``substitution`` …) are passed on. Layouts that the literature shows as pictures are
written here as strings, in reading order; the choice of layout is ours.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from interp.errors import Problems
from interp.tasks.template.task import GREEK, TemplateTask, random_templates


def same_different(**options: Any) -> TemplateTask:
    """The templates αα (label +1) and αβ (label −1): are two symbols the same?"""
    return TemplateTask(("αα", "αβ"), (1.0, -1.0), title="same-different", **options)


def aba_abb(**options: Any) -> TemplateTask:
    """The templates αβα (label +1) and αββ (label −1)."""
    return TemplateTask(("αβα", "αββ"), (1.0, -1.0), title="aba-abb", **options)


def aabb_abab(**options: Any) -> TemplateTask:
    """The templates ααββ (label +1) and αβαβ (label −1).

    The last row of the equality matrix is enough to tell them apart.
    """
    return TemplateTask(("ααββ", "αβαβ"), (1.0, -1.0), title="aabb-abab", **options)


def majority(length: int = 3, **options: Any) -> TemplateTask:
    """The label is the one of two symbols, in any order, that occurs more often.

    Raises:
        ArgumentError: for an even length, or one beyond 9 (2^(length−1) templates).
    """
    problems = Problems("majority")
    good = 3 <= length <= 9 and length % 2 == 1
    problems.need(good, "length", "must be odd, from 3 to 9", length, "a tie has no majority")
    problems.raise_if_any()
    templates = tuple("α" + "".join(rest) for rest in product("αβ", repeat=length - 1))
    labels = tuple("α" if 2 * z.count("α") > length else "β" for z in templates)
    return TemplateTask(templates, labels, title=f"majority-{length}", **options)


def match_to_sample(**options: Any) -> TemplateTask:
    """Relational match to sample: which of two pairs has the relation of the sample pair?

    A row is the sample, the first pair and the second pair; the label is +1 for the first pair and
    −1 for the second.
    """
    rows = {"ααββγδ": 1.0, "ααβγδδ": -1.0, "αβγδεε": 1.0, "αβγγδε": -1.0}
    return TemplateTask(tuple(rows), tuple(rows.values()), title="match-to-sample", **options)


def distribution_of_three(**options: Any) -> TemplateTask:
    """Three objects, then two of them in any order; the label is the missing one."""
    rows = {
        f"αβγ{one}{two}": ({*"αβγ"} - {one, two}).pop()
        for one, two in product("αβγ", repeat=2)
        if one != two
    }
    return TemplateTask(tuple(rows), tuple(rows.values()), title="distribution-of-three", **options)


def identity_rules(**options: Any) -> TemplateTask:
    """A rule shown once (ABA, ABB or AAA), then two new objects; the label is what the rule puts
    third."""
    rows = {"αβαγδ": "γ", "αββγδ": "δ", "αααββ": "β"}
    return TemplateTask(tuple(rows), tuple(rows.values()), title="identity-rules", **options)


def copying(template: str = "αβα", source: str = "β", **options: Any) -> TemplateTask:
    """One template whose label is one of its wildcards, so the symbol there is to be copied."""
    return TemplateTask((template,), (source,), title=f"copying-{template}-{source}", **options)


def induction_style(length: int = 5, **options: Any) -> TemplateTask:
    """Distinct symbols, then one of them again; the label is the symbol that followed it before.

    There is one template for each position but the last, so no fixed position can be copied.

    Raises:
        ArgumentError: for fewer than three or more than ten positions.
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
    """A task of random templates with alternating or symbolic labels.

    Real labels alternate ±1. A symbolic label is the wildcard at a position that the seed and the
    template's number choose.
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
"""The name of each task → the function that makes it, with defaults."""
