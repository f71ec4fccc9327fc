"""Proofs for two attention layers: induction by the last token and the answer, counters by counts
and blocks.

    induction   a cell is a template with the symbols of its last token and of its answer; all
                other symbols are free (:mod:`interp.bounds.two_layers`)
    counters    a cell is the numbers of a's and b's in a prefix of L_k, and of its blocks; where
                the blocks end is free (:mod:`interp.bounds.counted`)

For a model that finds the token after an earlier equal one and copies it, the first cover is
enough; for a model whose first layer counts letters, and whose second averages over where a count
holds, the second is. Cells without a proof are split further, and what is still open then counts as
wrong: a model that works otherwise makes the bound low or the proof long, never false.
"""

from __future__ import annotations

import time
from typing import Any

from interp.bounds.affine import Arithmetic, share
from interp.bounds.counted import not_counted, share_right
from interp.bounds.two_layers import Watch, count_right, not_two_layers, too_many, work
from interp.tasks.depth.strings import counts_and_blocks, letters_of
from probes.certify.cover import Proof
from probes.certify.domains import Domain, Strings, Templates
from probes.certify.lemmas import Lemma, after_the_earlier, counts_alone

_PATIENCE = 2**31
"""Largest number of array entries that the cells of an induction proof may need if the user did not
ask for this proof by name. They take about a minute."""

_LONGEST = 32
"""Number of letters up to which strings are proved if the user did not ask for this proof by name.
Its time grows with the fourth power of the length."""


def by_last_and_answer(
    model: Any, domain: Templates, *, asked: bool, watch: Watch = iter
) -> Proof | str:
    """Prove the accuracy on strings of templates, with a cell for each last token and answer.

    Args:
        model: A covered model.
        domain: The strings.
        asked: Whether this proof was requested by name, so that it is made however long it takes.
        watch: A wrapper around the loop over templates, for a progress bar.

    Returns:
        The proof, or why there is none, in words.
    """
    task = domain.task
    if domain.kind != "accuracy":
        return "labels are numbers: what heads pass on keeps the symbol, so each pair is a case"
    tokens = len(task.regular) + len(domain.symbols)
    if reason := not_two_layers(model) or too_many(model, tokens):
        return reason
    listed = task.by_last_and_answer()
    cells = sum(len(given) for _, given, _ in listed)
    if cells * work(model, tokens, task.length) > _PATIENCE and not asked:
        return f"{cells} cells of {tokens} tokens would take long: ask for 'mechanism'"
    started, ar = time.perf_counter(), Arithmetic()
    found = count_right(model, domain.symbols, listed, ar, watch)
    bound, whole = share(sum(found.right), domain.size), found.right[0] / domain.size
    parts = {"right by the last token and the answer alone": whole}
    lemmas, cells = after_the_earlier(found.elsewhere), sum(found.cells)
    seconds = time.perf_counter() - started
    return _proof(domain, bound, cells, ar, seconds, lemmas, parts, "last token and answer")


def by_counts_and_blocks(
    model: Any, domain: Strings, *, asked: bool, watch: Watch = iter
) -> Proof | str:
    """Prove the accuracy on prefixes of L_k, with a cell for each number of letters and blocks.

    Args:
        model: A covered model.
        domain: The strings.
        asked: Whether this proof was requested by name, so that it is made however long it takes.
        watch: A wrapper around the loop over cells, for a progress bar.

    Returns:
        The proof, or why there is none, in words.
    """
    if reason := not_counted(model):
        return reason
    if domain.lengths[-1] > _LONGEST and not asked:
        return f"strings of {domain.lengths[-1]} letters would take long: ask for 'mechanism'"
    started, ar = time.perf_counter(), Arithmetic()
    task: Any = domain.task
    cells, answers, counts = counts_and_blocks(task, domain.length)
    least = domain.trivial
    bound = share_right(model, letters_of(task), cells, answers, counts, ar, watch, least)
    seconds = time.perf_counter() - started
    lemmas = counts_alone()
    return _proof(domain, bound, len(cells), ar, seconds, lemmas, {}, "counts and blocks")


def _proof(
    domain: Domain,
    bound: float,
    cells: int,
    ar: Arithmetic,
    seconds: float,
    lemmas: tuple[Lemma, ...],
    parts: dict[str, float],
    cover: str,
) -> Proof:
    weak = f"no better than the {domain.trivial:.4g} of the best constant answer"
    reason = "" if bound > domain.trivial else weak
    numbers = (bound, cells, ar.multiplications, seconds, "real")
    return Proof("mechanism", "accuracy", *numbers, lemmas, parts, reason, {"cover": cover})
