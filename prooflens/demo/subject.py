"""One of the demo's models, with everything that was measured on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from interp.models.transformer import SequenceTransformer
from interp.tasks.memory import FixedMemory
from probes.kernels import LayerKernels
from prooflens.inspection import Inspected


@dataclass(frozen=True)
class Subject:
    """One of the models that are compared.

    Attributes:
        name: The name of the model, in words.
        model: The model that was run.
        task: The task it was measured on.
        inspected: Everything that was measured on it.
        kernels: What heads attend to and write, by lag.
    """

    name: str
    model: SequenceTransformer
    task: FixedMemory
    inspected: Inspected
    kernels: LayerKernels

    @property
    def roles(self) -> pd.DataFrame:
        """The roles that were decided, with the evidence."""
        return self.inspected.roles

    @property
    def memories(self) -> Mapping[str, int]:
        """The latent of each memory → the lag from which it is fetched."""
        return dict(zip(self.task.arguments[1:], self.task.lags, strict=True))

    @property
    def performance(self) -> Mapping[str, Any]:
        """How well it solves its task: ``accuracy`` (share of positions with the right sign),
        ``loss`` (squared error over the target's variance) and ``worst`` (absolute error)."""
        return dict(self.inspected.measured["trials"].iloc[0])

    @property
    def readable(self) -> pd.DataFrame:
        """Linear decodability, a row a place of the residual stream and a column a latent."""
        table = self.inspected.measured["decodability"]
        wide = table.pivot(index="site", columns="latent", values="score")
        return wide.loc[table["site"].drop_duplicates()]
