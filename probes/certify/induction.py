"""Induction in two attention layers: strings by their last token and the answer alone.

    cell    a template, the symbols of its last token and of its answer; all other symbols open

A model that looks for the token after an earlier equal one, and copies it, needs no more than these
two. :mod:`interp.bounds.two_layers` bounds each cell; one of which nothing is proved is split by
one symbol more, so a model that works otherwise costs as many cells as there are strings, and the
bound is never false. The lemma says how much each head of the second layer looks elsewhere than at
the token after the earlier one, over all cells.
"""

from __future__ import annotations

import time
from typing import Any

from interp.bounds.affine import Arithmetic, share
from interp.bounds.two_layers import answered, not_two_layers, too_many
from probes.certify.cover import Proof
from probes.certify.domains import Templates
from probes.certify.lemmas import after_the_earlier

COVER = "last token and answer"


def by_last_and_answer(model: Any, domain: Templates) -> Proof | str:
    """The proof, or why there is none.

    Args:
        model: A covered model.
        domain: Strings of templates whose label is a symbol or a token.
    """
    task = domain.task
    if domain.kind != "accuracy":
        return "labels are numbers: what heads pass on keeps the symbol, so each pair is a case"
    if reason := not_two_layers(model) or too_many(model, len(task.regular) + len(domain.symbols)):
        return reason
    started, ar = time.perf_counter(), Arithmetic()
    listed = [task.by_last_and_answer(index) for index in range(len(task.templates))]
    found = answered(model, domain.symbols, listed, ar)
    bound = share(sum(found.right), domain.size)
    weak = f"no better than the {domain.trivial:.4g} of the best constant answer"
    return Proof(
        "mechanism",
        "accuracy",
        bound,
        sum(found.cells),
        ar.multiplications,
        time.perf_counter() - started,
        "real",
        after_the_earlier(found.elsewhere),
        {"right by the last token and the answer alone": found.right[0] / domain.size},
        "" if bound > domain.trivial else weak,
        {"cover": COVER},
    )
