"""How a claim trains its models: as its setting says; what an interrupted run did is kept."""

from __future__ import annotations

from collections.abc import Sequence

from analyses.claims.base import Setting
from trained.fit import Fit
from trained.grid import train
from trained.run import Run

__all__ = ["train_runs"]


def train_runs(setting: Setting, runs: Sequence[Run], part: str) -> list[Fit]:
    """What came of the runs, in their order; their states lie in ``part`` of the claim's folder."""
    return train(
        runs,
        folder=setting.folder / part,
        resume=setting.resume,
        device=setting.device,
        backend=setting.backend,
        progress=setting.progress,
    )
