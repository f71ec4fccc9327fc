"""Every string of a template task over an alphabet (`template` §2.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, permutations
from math import perm
from typing import Any

import numpy as np
from jaxtyping import Int

from interp.bounds.affine import exactly
from interp.tasks.template import TemplateTask
from interp.tasks.template.text import is_wildcard, wildcards
from probes.certify.cover import UNKNOWN, Cells
from probes.certify.domains.base import CHUNK, Domain

__all__ = ["Templates"]


class Templates(Domain):
    """Every substitution of every template by distinct symbols of the task's alphabet.

    Real labels: the error |output − label|, and the best constant is half their range away.
    Symbolic labels: the share of strings whose answer is the top token.
    """

    def __init__(self, task: TemplateTask) -> None:
        self.task = task
        self.kind = "accuracy" if task.symbolic else "error"
        first, stop = task.train if task.split == "train" else task.test
        start = len(task.regular)
        self.symbols = np.arange(start + first, start + stop)
        labels = [float(v) for v in task.labels if not isinstance(v, str)]
        self.trivial = 1 / len(self.symbols) if task.symbolic else (max(labels) - min(labels)) / 2

    @property
    def size(self) -> int:
        """Strings, each counted with its template."""
        return sum(perm(len(self.symbols), len(wildcards(z))) for z in self.task.templates)

    @property
    def statement(self) -> str:
        """In words."""
        first, last = self.symbols[0], self.symbols[-1]
        names = ", ".join(self.task.templates)
        return f"every string of the templates {names} with symbols {first} to {last}"

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """See :class:`~probes.certify.domains.base.Domain`."""
        v = self.task.vocabulary
        return "tokens", v, v if self.task.symbolic else 1, self.task.length

    def describe(self) -> dict[str, Any]:
        """As JSON data."""
        return {"kind": "templates", "task": self.task.to_dict()}

    def points(self) -> Iterator[Cells]:
        """Every string."""
        for index, template in enumerate(self.task.templates):
            drawn = permutations(self.symbols.tolist(), len(wildcards(template)))
            wild, label = wildcards(template), self.task.labels[index]
            asked = wild.index(label) if label in wild else 0
            while piece := list(islice(drawn, CHUNK)):
                symbols = np.array(piece)  # the one that is asked for varies slowest
                symbols[:, [0, asked]] = symbols[:, [asked, 0]]
                yield self._cells(index, symbols)

    def sample(self, n: int, rng: np.random.Generator) -> Iterator[Cells]:
        """n random strings of each template."""
        for index, template in enumerate(self.task.templates):
            count = len(wildcards(template))
            drawn = [rng.choice(self.symbols, count, replace=False) for _ in range(n)]
            cells = self._cells(index, np.array(drawn))
            yield replace(cells, weight=cells.weight * perm(len(self.symbols), count) / n)

    def _cells(self, index: int, symbols: Int[np.ndarray, "cell wildcard"]) -> Cells:
        """Substitutions of one template; symbols may be unknown."""
        template, label = self.task.templates[index], self.task.labels[index]
        places = {c: symbols[:, i] for i, c in enumerate(wildcards(template))}
        known = {c: np.full(len(symbols), i) for i, c in enumerate(self.task.regular)}
        token = places | known
        ids = np.stack([token[c] for c in template], axis=1).astype(np.int64)
        targets: Any
        if isinstance(label, str):
            targets = token[label] if is_wildcard(label) else known[label]
        else:
            targets = exactly(np.full((len(ids), 1), float(label)))
        weight = np.ones(len(ids)) * (
            perm(len(self.symbols), symbols.shape[1]) if (symbols == UNKNOWN).any() else 1
        )
        return Cells(ids, targets, weight, vocabulary=self.symbols)

    def boxes(self) -> Iterator[Cells]:
        """Each template with unknown symbols: that they are equal or differ is lost."""
        for index, template in enumerate(self.task.templates):
            yield self._cells(index, np.full((1, len(wildcards(template))), UNKNOWN))
