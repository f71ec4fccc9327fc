"""Train one stack from start to end, saving its state every few minutes and on Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from interp.threads import one_thread
from trained.ensemble import Ensemble
from trained.run import Run
from trained.state_files import load_state, save_state
from trained.stopping import stop_asked

__all__ = ["Options", "finish", "train_unit"]


@dataclass(frozen=True)
class Options:
    """Options of how stacks are trained.

    Attributes:
        device: The torch device to compute on, such as ``cpu`` or ``cuda``.
        compiled: Whether the training step is compiled with ``torch.compile``.
        minutes: Time between two saves of the state.
    """

    device: str = "cpu"
    compiled: bool = False
    minutes: float = 5.0


def train_unit(
    runs: Sequence[Run],
    options: Options,
    file: Path | None = None,
    advanced: Callable[[int], None] = lambda steps: None,
) -> Ensemble:
    """Train a stack of runs to its end.

    Args:
        runs: Runs whose models have the same shape.
        options: How the stack is trained.
        file: Where its state is kept, and taken up from if it is there.
        advanced: Called with the number of steps since the last call.

    Raises:
        KeyboardInterrupt: after Ctrl-C or a polite kill, with the state saved.
        CheckpointError: if the file is damaged or of other runs.
    """
    ensemble = Ensemble(runs, device=options.device, compiled=options.compiled)
    if file is not None and file.exists():
        load_state(ensemble, file)
        advanced(ensemble.state.step)
    with one_thread(), stop_asked() as asked:
        saved = time.monotonic()
        for _ in ensemble.run():
            advanced(1)
            due = time.monotonic() - saved > 60 * options.minutes
            if file is not None and (due or asked()):
                save_state(ensemble, file)
                saved = time.monotonic()
            if asked():
                raise KeyboardInterrupt
    if file is not None:
        save_state(ensemble, file)
    return ensemble


def finish(runs: Sequence[Run], options: Options, file: Path) -> None:
    """Call :func:`train_unit` in another process; its result is the saved file."""
    train_unit(runs, options, file)
