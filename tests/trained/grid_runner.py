"""Trains a small grid slowly in a folder, for a test that kills it: ``FOLDER``."""

import sys
import time
from pathlib import Path
from typing import Any

from small_runs import tiny

from trained.ensemble import Ensemble
from trained.grid import train


def main(folder: str) -> None:
    step = Ensemble._step

    def slow(self: Any) -> None:
        time.sleep(0.02)
        step(self)
        Path(folder, "steps.txt").write_text(str(self.state.step))

    Ensemble._step = slow  # type: ignore[method-assign]
    runs = [tiny(str(seed), seed=seed, steps=60, snapshots=30) for seed in range(2)]
    train(runs, folder=folder, together=2, workers=1, minutes=0.001)


if __name__ == "__main__":
    main(sys.argv[1])
