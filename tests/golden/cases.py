"""What is asked: every case, with the fewest rows at which the model's roles hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import prooflens as pl

from . import answers
from .answers import Answer
from .files import FLOOR

__all__ = ["CASES", "STORES", "Case"]

_GPT2, _OTHERS = "PROOFLENS_GPT2", "PROOFLENS_DECOMPILE"
"""Variables of the environment: folders of GPT-2's attention weights and of models that others
trained."""

_ROUNDING = 1e-7
"""Floor for what is computed in single precision, whose numbers near one are 1.2e-7 apart."""

_LOSSES = 3e-5
"""Floor for differences of losses, in nats, and for their p: single precision tells losses of ten
nats 1e-6 apart, and rows that share a pass are summed in another order. Of two processors, one
Intel's and one AMD's, one p of 0.51 differed by 2.1e-5."""

_SINGULAR = 1e-5
"""Floor for scores and p of GPT-2's weights beside nulls: two processors differ by 8e-6."""


@dataclass(frozen=True)
class Case:
    """One question, and where its answer is kept.

    Attributes:
        name: The file under ``data``.
        answer: Asks the product.
        about: What was asked: the number of rows and what a reader should know of it.
        slow: Whether it takes longer than a few seconds.
        needs: The environment variable that names the folder it needs; empty for none.
        floor: How much numbers may differ, however small they are.
    """

    name: str
    answer: Callable[[], Answer]
    about: Answer
    slow: bool = True
    needs: str = ""
    floor: float = FLOOR

    @property
    def marker(self) -> str:
        """How its test is marked: ``slow``, ``golden``, or not."""
        return "golden" if self.name in _COSTLY else "slow" if self.slow else ""


_QUICK_ROLES = ("fixed-memory-multiplexer", "induction-attention", "max-of-4", "template-copying-b")
_ROLES = {
    "adaptive-memory": 8,
    "adaptive-memory-gated": 16,
    "concurrent-memory": 16,
    "coupling-order-transformer": 8,
    "coupling-rank-2": 16,
    "coupling-rank-2-layers": 8,
    "coupling-rank-6": 16,
    "coupling-rank-6-layers": 8,
    "coupling-rank-infinite": 32,
    "depth-L3-layers1": 16,
    "depth-L4-layers1": 8,
    "depth-L4-layers2": 16,
    "depth-L4-layers2-heads": 8,
    "depth-L5-layers2": 8,
    "depth-L5-layers3": 16,
    "depth-L6-layers3": 8,
    "depth-L6-layers4": 8,
    "fixed-memory-multiplexer": 8,
    "fixed-memory-multiplexer-mixed": 8,
    "fixed-memory-table": 16,
    "induction-attention": 8,
    "induction-mlp": 8,
    "induction-mlp-table": 8,
    "max-of-4": 8,
    "nested-memory-2": 16,
    "nested-memory-2-gated": 32,
    "nested-memory-3": 16,
    "nested-memory-3-gated": 32,
    "sparse-memory-heavy": 8,
    "sparse-memory-light": 32,
    "sparse-memory-light-layers": 32,
    "template-copying-b": 16,
    "template-copying-b-grown": 48,
    "template-copying-plain": 48,
    "template-majority": 16,
    "template-match-to-sample": 16,
    "template-same-different-a": 32,
    "template-same-different-plain": 48,
}
"""Shipped model with heads → rows."""

_THIRD_PARTY = {
    "abab-star-1l1h64": 8,
    "count-1l4h256": 8,
    "dyck-depth2-1l1h16": 8,
    "majority-of-bits-1l1h16": 8,
    "sort-1l1h256": 8,
    "tomita4-2l2h16": 8,
    "unique-copy-2l1h64": 8,
}
"""Model that others trained → rows of ``inspect``."""

_QUICK_PROGRAMS = ("depth-L3-layers1", "depth-L4-layers2", "template-copying-b")
_PROGRAMS = (
    "depth-L3-layers0",
    "depth-L3-layers1",
    "depth-L4-layers1",
    "depth-L4-layers2",
    "depth-L4-layers2-heads",
    "depth-L5-layers2",
    "depth-L5-layers3",
    "depth-L6-layers3",
    "depth-L6-layers4",
    "induction-attention",
    "induction-mlp",
    "induction-mlp-table",
    "max-of-4",
    "template-copying-b",
    "template-copying-b-grown",
    "template-copying-plain",
    "template-majority",
    "template-match-to-sample",
    "template-same-different-a",
    "template-same-different-plain",
)
"""Shipped models of tokens, which are decompiled on rows of their own task."""

_THEOREMS = {
    "fixed-memory-multiplexer": 8,
    "fixed-memory-multiplexer-mixed": 8,
    "fixed-memory-table": 8,
    "adaptive-memory-gated": 12,
    "depth-L3-layers1": 8,
    "depth-L4-layers1": 8,
    "depth-L4-layers2": 8,
    "depth-L5-layers3": 8,
    "max-of-4": None,
}
"""Shipped model → the longest row that is proved something about; None for the task's own."""

_COSTLY = (
    "programs/count-1l4h256",
    "programs/depth-L4-layers2-heads",
    "programs/depth-L5-layers2",
    "programs/depth-L6-layers3",
    "programs/depth-L6-layers4",
    "programs/induction-mlp-table",
    "programs/sort-1l1h256",
    "programs/template-copying-b-grown",
    "programs/template-copying-plain",
    "programs/template-majority",
    "programs/template-match-to-sample",
    "programs/template-same-different-plain",
    "roles/coupling-rank-6-layers",
    "roles/depth-L4-layers2-heads",
    "roles/depth-L5-layers2",
    "roles/depth-L5-layers3",
    "roles/depth-L6-layers3",
    "roles/depth-L6-layers4",
    "roles/induction-mlp-table",
    "roles/nested-memory-2",
    "roles/nested-memory-3",
    "roles/nested-memory-3-gated",
    "roles/sparse-memory-light-layers",
    "roles/template-copying-plain",
    "roles/template-match-to-sample",
)
"""What takes longest, beside cases that go the same ways: `make test-golden` alone asks it."""

_STRATEGIES = ("brute force", "mechanism", "cubic", "black box")


def _roles() -> Iterator[Case]:
    for name, rows in _ROLES.items():
        yield Case(
            f"roles/{name}",
            partial(answers.roles, name, rows),
            {"rows": rows},
            slow=name not in _QUICK_ROLES,
            floor=_ROUNDING,
        )


def _inspections() -> Iterator[Case]:
    yield Case(
        "inspect/code-lm",
        partial(answers.inspection, "code-lm", 8),
        {"rows": 8},
        floor=_LOSSES,
    )
    for name, rows in _THIRD_PARTY.items():
        yield Case(
            f"inspect/{name}",
            partial(_inspect_other, name, rows),
            {"rows": rows},
            needs=_OTHERS,
            floor=_LOSSES,
        )


def _inspect_other(name: str, rows: int) -> Answer:
    folder = _case_folder(_OTHERS) / name
    return answers.inspection(folder, rows, folder / "rows.json")


def _weights() -> Iterator[Case]:
    code_lm = answers.shipped_folder("code-lm")
    yield Case(
        "weights/code-lm", partial(answers.weights, code_lm, ["all"], 2), {"metrics": "all"},
        slow=False,
    )  # fmt: skip
    yield Case(
        "weights/gpt2", lambda: answers.weights(_case_folder(_GPT2), ["heads"], 3),
        {"metrics": "heads"}, slow=False, needs=_GPT2, floor=_SINGULAR,
    )  # fmt: skip
    yield Case(
        "weights/gpt2-compositions", lambda: answers.compositions(_case_folder(_GPT2), 29),
        {"metrics": "composition"}, needs=_GPT2, floor=_SINGULAR,
    )  # fmt: skip


def _programs() -> Iterator[Case]:
    for name in _PROGRAMS:
        yield Case(
            f"programs/{name}",
            partial(answers.program, name),
            {"rows": "own"},
            slow=name not in _QUICK_PROGRAMS,
            floor=_ROUNDING,
        )
    for name in _THIRD_PARTY:
        yield Case(
            f"programs/{name}",
            partial(_decompile_other, name),
            {"rows": "rows.json", "program": "a digest a line: the models have no licence"},
            needs=_OTHERS,
            floor=_ROUNDING,
        )


def _decompile_other(name: str) -> Answer:
    folder = _case_folder(_OTHERS) / name
    found = answers.program(folder, folder / "rows.json")
    return found | {"program": answers.line_digests(found["program"])}


def _certificates() -> Iterator[Case]:
    yield Case("certificates/memories", answers.constructions, {}, slow=False)
    yield Case("certificates/others", _other_constructions, {}, slow=False)
    for name, length in _THEOREMS.items():
        yield Case(
            f"theorems/{name}",
            partial(answers.theorem, name, _STRATEGIES, length),
            {"length": length},
            slow=name != "fixed-memory-multiplexer",
        )


def _other_constructions() -> Answer:
    """The proofs of tasks that are no memories."""
    small: dict[str, Any] = {"train": (0, 10), "test": (10, 20)}
    tasks: dict[str, Any] = {
        **{f"prefix L_{k}": pl.tasks.PrefixPrediction(f"L_{k}", ((k, 12),)) for k in range(3, 7)},
        **{f"template {name}": make(**small) for name, make in pl.tasks.NAMED.items()},
        **{
            f"relation {kind} {value}": pl.tasks.TokenRelation(kind, value, symbols=6, length=9)
            for kind, value in _RELATIONS.items()
        },
        **{f"coupling {rank}": pl.tasks.PodCoupling(rank, length=8) for rank in (2, 5)},
    }
    return {name: answers.construction(task) for name, task in tasks.items()}


_RELATIONS = {
    "previous-token": "copy",
    "duplicate-token": "negative",
    "induction": "relabel",
    "sink": "classes",
    "uniform": "copy",
    "local": "negative",
    "dense": "relabel",
    "mirror": "classes",
    "halved": "copy",
    "smaller": "negative",
    "greater": "relabel",
    "periodic": "classes",
    "all-but-first": "copy",
}
"""Relation of two tokens → what is passed on."""


def _case_folder(variable: str) -> Path:
    """The folder that a case needs; a test without it is skipped before."""
    folder = answers.folder_named(variable)
    if folder is None:
        raise FileNotFoundError(f"{variable} names no folder")
    return folder


CASES: dict[str, Case] = {
    case.name: case
    for make in (_roles, _inspections, _weights, _programs, _certificates)
    for case in make()
}
"""Every case by name."""

_PATTERN = "blocks.0.attn.hook_pattern"
STORES: dict[str, Answer] = {
    "float32": {
        "name": "fixed-memory-multiplexer",
        "hooks": [_PATTERN, "blocks.0.attn.hook_z"],
        "rows": 6,
        "batch": 2,
        "part_rows": 4,
    },
    "bfloat16": {
        "name": "induction-attention",
        "hooks": ["*.hook_resid_post", "*.attn.hook_pattern"],
        "rows": 4,
        "batch": 4,
        "dtype": "bfloat16",
        "positions": "40:48:2",
        "compression": "gzip",
    },
}
"""Stores that were written: the model, and what :func:`prooflens.extract` was asked."""
