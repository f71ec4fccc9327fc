"""Images for the claim about spectra: the handwritten digits of scikit-learn, or the user's own.

    input    the grey values of 8 × 8 cells of an image, row by row, with noise added
    target   the same values without noise, at every cell

An image is cut to the middle square whose side is a multiple of 8 and averaged over cells; values
of the set are shifted and scaled to mean 0 and variance 1. Every cell is asked for, so that every
row of scores is trained: where an image is only classified, a single layer needs one row, and the
rest of its score matrix means nothing. Classes are not needed.

*File*: ``.npy`` or ``.npz`` (its array ``images``, or its only one), ``[image, row, column]`` or
``[image, row, column, channel]``. *Folder*: every PNG in it and below, of any sizes. Nothing in a
file is executed. Every tenth image is held out for the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float

from prooflens.errors import ArgumentError, Problems
from prooflens.files import regular
from prooflens.tasks import Batch

__all__ = ["NoisyImages"]

_GRID, _LEAST, _HELD_OUT = 8, 20, 10


@dataclass(frozen=True)
class NoisyImages:
    """The cells of noisy images, to be restored.

    Attributes:
        images: A ``.npy`` or ``.npz`` file or a folder of PNGs; empty for scikit-learn's digits.
        noise: Standard deviation of the noise, in units of the images' own.
        held_out: Whether images are those that are not trained on.

    Raises:
        ArgumentError: if the images cannot be read, are no images, too few or all of one grey.
    """

    ordered: ClassVar[bool] = True
    """Places matter."""

    images: str = ""
    noise: float = 1.0
    held_out: bool = False

    def __post_init__(self) -> None:
        _cells(self.images)

    @property
    def name(self) -> str:
        """The name of the set: ``digits``, or the file's or folder's name."""
        return Path(self.images).stem if self.images else "digits"

    @property
    def count(self) -> int:
        """The number of images of the set, including those held out."""
        return len(_cells(self.images))

    def testing(self) -> NoisyImages:
        """The same task on the images that are held out."""
        return replace(self, held_out=True)

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs and targets ``[batch, 64, 1]``, no latents."""
        cells, rng = _cells(self.images), np.random.default_rng(seed)
        held = np.arange(len(cells)) % _HELD_OUT == 0
        clean = rng.choice(cells[held == self.held_out], size=n)[..., None]
        noisy = clean + self.noise * rng.standard_normal(clean.shape, dtype=np.float32)
        scored = torch.ones(clean.shape[:2], dtype=torch.bool)
        return Batch(torch.from_numpy(noisy), torch.from_numpy(clean), scored).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "noisy_images", **asdict(self)}


@lru_cache(maxsize=4)
def _cells(path: str) -> Float[np.ndarray, "image cell"]:
    """Return the cells of all images of a set, scaled to mean 0 and variance 1 over the whole
    set."""
    if not path:
        from sklearn.datasets import load_digits

        found: Iterable[np.ndarray] = load_digits().images
    else:
        found = _folder(Path(path)) if Path(path).is_dir() else _array(Path(path))
    cells = np.array([_one(image, path) for image in found])
    problems = Problems("images")
    rule = f"must hold {_LEAST} images at least"
    problems.need(len(cells) >= _LEAST, path, rule, len(cells), "give more")
    problems.raise_if_any()
    finite, varied = bool(np.isfinite(cells).all()), bool(cells.min() < cells.max())
    problems.need(finite, path, "must hold finite values", "NaN or infinity", "replace them")
    problems.need(not finite or varied, path, "must vary", "one grey", "give other images")
    problems.raise_if_any()
    scaled: np.ndarray = ((cells - cells.mean()) / cells.std()).astype(np.float32)
    return scaled


def _one(image: np.ndarray, path: str) -> Float[np.ndarray, " cell"]:
    """Return the mean grey value of every cell of an image ``[row, column]``, or with channels, of
    which a fourth (opacity) is ignored."""
    if image.ndim == 3:
        image = image[..., :3].astype(np.float64).mean(-1)
    side = min(image.shape) // _GRID * _GRID
    if not side:
        raise ArgumentError(
            f"{path}: images must have {_GRID} rows and columns at least, got {image.shape}"
        )
    top, left = ((size - side) // 2 for size in image.shape)
    square = image[top : top + side, left : left + side].astype(np.float64)
    cell = side // _GRID
    cells: np.ndarray = square.reshape(_GRID, cell, _GRID, cell).mean((1, 3)).ravel()
    return cells


def _folder(folder: Path) -> Iterable[np.ndarray]:
    from matplotlib.image import imread

    for file in sorted(p for p in folder.rglob("*") if p.suffix.lower() == ".png"):
        regular(file, "image", ArgumentError)
        try:
            yield imread(file, format="png")
        except Exception as error:  # a decoder's errors are of many kinds
            raise ArgumentError(f"{file} cannot be read as a PNG: {error}") from error


def _array(path: Path) -> np.ndarray:
    if path.suffix not in (".npy", ".npz"):
        raise ArgumentError(f"images must be a .npy or .npz file or a folder of PNGs, got {path}")
    regular(path, "images", ArgumentError)
    try:
        found = np.load(path, allow_pickle=False)
        names = [] if isinstance(found, np.ndarray) else found.files
        name = names[0] if len(names) == 1 else "images"
        array = np.asarray(found[name] if names else found)
    except Exception as error:  # NumPy's parsers have errors of many kinds
        raise ArgumentError(f"{path} cannot be read as an array of images: {error}") from error
    plain = array.dtype.kind in "biuf"
    shaped = array.ndim == 3 or (array.ndim == 4 and array.shape[-1] in (1, 3, 4))
    if not plain or not shaped:
        raise ArgumentError(
            f"{path} must hold numbers [image, row, column], or with 1, 3 or 4 channels last, got "
            f"{array.dtype} {list(array.shape)}"
        )
    return array
