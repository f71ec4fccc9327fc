"""Image classification from patches in a fixed, permuted order (`coupling` §4.3, real data).

An image is cut into patches, read row by row or in one fixed random order, the same for every
image; a last token without pixels asks for the class. With learned positions the permutation costs
a transformer that is trained on it nothing in principle: what it does cost is what the
architecture or its pretraining assumed about order.

Two sources. ``shapes``: generated grey images of a filled disk, a ring, a square or a cross at
random places and sizes, with noise, so that tests and quick runs need no download. A folder with
CIFAR-10 in its *binary* version (``data_batch_1.bin`` … ``test_batch.bin``): the Python version
holds pickles, which are never opened here. The shapes are far easier than photographs; what a
permutation costs on them is no estimate of what it costs there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from prooflens.errors import ArgumentError, Problems
from prooflens.tasks import Batch

__all__ = ["PermutedPatches"]

_SHAPES = ("disk", "ring", "square", "cross")
_RECORD = 3073
_FILES = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}


@dataclass(frozen=True)
class PermutedPatches:
    """Classify an image from its patches, in reading order or in a fixed random order.

    Attributes:
        images: ``shapes`` for generated images, or a folder with CIFAR-10's binary files.
        permuted: Whether patches come in a fixed random order instead of row by row.
        pixels: Whether that order is one of single pixels instead, so that a patch is made of
            pixels from all over the image. Of whole patches it is a symmetry of a model with
            learned positions, which can notice nothing; of pixels it is none.
        permutation_seed: Seed of that order.
        side: Side of an image in pixels (32 for CIFAR-10).
        patch: Side of a patch in pixels; it must divide ``side``.
        noise: Standard deviation of the Gaussian noise added to shapes.
        split: ``train`` or ``test`` images of CIFAR-10; shapes are always fresh.

    Raises:
        ArgumentError: naming every argument that breaks a rule, or a file that is missing or not
            what it should be.
    """

    images: str = "shapes"
    permuted: bool = False
    permutation_seed: int = 0
    side: int = 16
    patch: int = 4
    noise: float = 0.2
    split: str = "train"
    pixels: bool = False

    def __post_init__(self) -> None:
        problems = Problems("PermutedPatches")
        need = problems.need
        divides = self.patch >= 1 and self.side >= 8 and self.side % self.patch == 0
        sizes = (self.side, self.patch)
        need(divides, "patch", "must divide a side of at least 8", sizes, "e.g. side 16, patch 4")
        need(self.noise >= 0, "noise", "must not be negative", self.noise, "0 adds no noise")
        used = self.permuted or not self.pixels
        need(used, "pixels", "has no effect without permuted", self.pixels, "set permuted")
        need(self.split in _FILES, "split", "must be train or test", self.split, "pick one")
        if self.images != "shapes":
            need(self.side == 32, "side", "must be 32 for CIFAR-10", self.side, "set side 32")
            for name in _FILES.get(self.split, []):
                found = (Path(self.images) / name).is_file()
                rule = f"must be 'shapes' or a folder that holds {name}"
                need(found, "images", rule, self.images, "give CIFAR-10's binary version")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``patches-shapes-permuted``."""
        source = "shapes" if self.images == "shapes" else "cifar10"
        return "-".join(["patches", source, *["permuted"] * self.permuted])

    @property
    def d_in(self) -> int:
        """Channels of the input: a patch's pixels and the flag of the last token."""
        return self.patch**2 * (1 if self.images == "shapes" else 3) + 1

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(_SHAPES) if self.images == "shapes" else 10

    @property
    def length(self) -> int:
        """Positions of a row: patches and the token that asks."""
        return (self.side // self.patch) ** 2 + 1

    def order(self) -> Int[Tensor, " patch"]:
        """The number of the patch (counted row by row) that stands at each position."""
        patches = self.length - 1
        if not self.permuted or self.pixels:
            return torch.arange(patches)
        generator = torch.Generator().manual_seed(self.permutation_seed)
        return torch.randperm(patches, generator=generator)

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` images: inputs ``[batch, pos, d_in]``, targets ``[batch, pos]`` the class,
        scored at the last position.

        Latents: ``label`` [batch, pos], and ``patch`` [batch, pos], which patch stands there (−1
        at the last position; of permuted pixels, which patch of the permuted image).
        """
        generator = torch.Generator().manual_seed(seed)
        if self.images == "shapes":
            images, label = _shapes(n, self.side, self.noise, generator)
        else:
            known, labels = _cifar10(self.images, self.split)
            rows = torch.randint(len(labels), (n,), generator=generator)
            images, label = known[rows].float() / 127.5 - 1, labels[rows]
        if self.pixels:
            turned = torch.Generator().manual_seed(self.permutation_seed)
            order = torch.randperm(self.side**2, generator=turned)
            images = torch.unflatten(images.flatten(2)[..., order], 2, (self.side, self.side))
        cut = rearrange(
            images, "n c (row a) (column b) -> n (row column) (c a b)", a=self.patch, b=self.patch
        )[:, self.order()]
        inputs = torch.zeros(n, self.length, self.d_in)
        inputs[:, :-1, :-1], inputs[:, -1, -1] = cut, 1.0
        targets = label[:, None].expand(n, self.length).clone()
        mask = (torch.arange(self.length) == self.length - 1).expand(n, -1).clone()
        places = torch.cat((self.order(), torch.tensor([-1]))).expand(n, -1).clone()
        latents = {"label": targets.clone(), "patch": places}
        return Batch(inputs, targets, mask, latents).to(device)

    def to_dict(self) -> dict[str, Any]:
        """The task as JSON data."""
        return {"kind": "permuted_patches", **asdict(self)}


def _shapes(
    n: int, side: int, noise: float, generator: torch.Generator
) -> tuple[Float[Tensor, "n 1 side side"], Int[Tensor, " n"]]:
    """Draw grey images with values in about [−1, 1] and return them with their classes: disk, ring,
    square, cross."""
    label = torch.randint(len(_SHAPES), (n,), generator=generator)
    radius = side * (0.2 + 0.15 * torch.rand(n, generator=generator))
    room = side - 2 * radius - 1
    centre = radius[:, None] + room[:, None] * torch.rand(n, 2, generator=generator)
    axis = torch.arange(side, dtype=torch.float32)
    dy = (axis[None, :, None] - centre[:, :1, None]).expand(n, side, side) / radius[:, None, None]
    dx = (axis[None, None] - centre[:, 1:, None]).expand(n, side, side) / radius[:, None, None]
    distance, widest = (dx**2 + dy**2).sqrt(), torch.maximum(dx.abs(), dy.abs())
    thin = torch.minimum(dx.abs(), dy.abs()) <= 0.3
    every = torch.stack(
        (distance <= 1, (distance <= 1) & (distance >= 0.6), widest <= 1, (widest <= 1) & thin)
    )
    images = 2.0 * every[label, torch.arange(n)] - 1
    images = images + noise * torch.randn(n, side, side, generator=generator)
    return images[:, None], label


@lru_cache(maxsize=2)
def _cifar10(folder: str, split: str) -> tuple[Tensor, Int[Tensor, " image"]]:
    """Read CIFAR-10 images as bytes [image, 3, 32, 32] with their classes. A record of the files is
    a label and 3072 pixels."""
    records = []
    for name in _FILES[split]:
        data = np.fromfile(Path(folder) / name, dtype=np.uint8)
        if len(data) == 0 or len(data) % _RECORD or data[::_RECORD].max() > 9:
            raise ArgumentError(
                f"PermutedPatches: images must be CIFAR-10's binary version, got {name} of "
                f"{len(data)} bytes: a record is a label below 10 and 3072 pixels"
            )
        records.append(data.reshape(-1, _RECORD))
    every = torch.from_numpy(np.concatenate(records))
    return every[:, 1:].reshape(-1, 3, 32, 32), every[:, 0].long()
