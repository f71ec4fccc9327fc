"""What a claim's function is given, and what it returns.

    run(setting: Setting) -> Verdict

The ledger (``analyses/papers/claims.toml``) names the function, the rule for its verdict and the
options of each profile. A verdict is about the setting it was reached in: small models, few seeds,
the stated lengths. *Not reproduced* means that the rule was not met there, and says with which
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
from matplotlib.figure import Figure

from prooflens.errors import Problems

__all__ = ["Drawing", "Setting", "Status", "Verdict"]

Status = Literal["reproduced", "partly", "not reproduced", "not run"]


@dataclass(frozen=True)
class Setting:
    """The circumstances in which a claim is run: its profile, seeds, options and places.

    Attributes:
        profile: ``zoo`` (shipped models only), ``quick`` (two cores) or ``full`` (a GPU).
        seeds: The seeds; each model is trained once per seed.
        options: The options of the profile, from the ledger.
        folder: The claim's own folder; what it writes there survives an interruption.
        resume: Whether to use what an interrupted run left in ``folder``.
        device: The torch device to compute on, such as ``cpu`` or ``cuda``.
        backend: Where models are trained, ``local`` or ``ray``.
        progress: Whether to show progress bars on a terminal.
        workers: The number of processes that train models; by default one per core, as far as there
            are models to train.
    """

    profile: str
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    folder: Path
    resume: bool = False
    device: str = "cpu"
    backend: str = "local"
    progress: bool = False
    workers: int | None = None


@dataclass(frozen=True)
class Drawing:
    """A figure, with a description for readers who cannot see it."""

    figure: Figure
    alternative: str


@dataclass(frozen=True)
class Verdict:
    """The result of running a claim.

    Attributes:
        status: The status that follows from the ledger's rule, or ``not run`` if the setting cannot
            answer the claim.
        words: One to three sentences with the reason; after a failure, also with its likely cause.
        key: The one number to quote, as text with its unit and spread.
        numbers: JSON data: every number the rule looks at, a list over seeds wherever there are
            seeds, and the spread.
        tables: Name → table.
        drawings: Name → figure; the first one stands for the claim.
        models: Names of the shipped models or constructions that the claim is about.

    Raises:
        ArgumentError: for an unknown status, or for one other than ``not run`` without a number.
    """

    status: Status
    words: str
    key: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    drawings: Mapping[str, Drawing] = field(default_factory=dict)
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems, known = Problems("verdict"), get_args(Status)
        rule = f"must be one of {', '.join(known)}"
        problems.need(self.status in known, "status", rule, self.status, "take one of them")
        bare = self.status != "not run" and not self.numbers
        problems.need(not bare, "numbers", "must be given for a claim that was run", {}, "add them")
        problems.need(bool(self.words), "words", "must say why", self.words, "add a sentence")
        problems.raise_if_any()
