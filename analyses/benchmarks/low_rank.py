"""Are circuits of low rank told from what only looks like them?

    python -m analyses benchmark low_rank [--models N] [--tune] [--out FILE]

One layer of four heads without FFN; V tokens, eight or sixteen times d_head (8 or 16), so that c·I
explains an eighth of a circuit at most. Tokens come in pairs: E = (C, ±I), Gaussian, with what a
pair shares and what tells its members apart; positions have directions of their own. With U of
d_head orthonormal directions of the tokens', one head of each model has QK = c·UUᵀ and writes where
it looked (``symbol-equality``); one has OV W_U = c·UUᵀEᵀ (``copying``, in half of the models with
−c: it suppresses). Two more have circuits that look alike:

    random    Gaussian directions on both sides
    moved     c·UU'ᵀ, where U' has I turned round: diagonal from each token to the other of its pair
    classes   c·UUᵀ with U in the directions of C: tokens are compared, or copied, by their pair
    avoided   −c·UUᵀ as QK: equal tokens are avoided

All weights are blurred by noise of a fifth of their size. A head is counted for each of the two
roles: it has it, or it is a decoy of it (the equality head of copying, and the other way round).
Found is what :func:`probes.roles.find_roles` confirms, cause included. ``--tune`` asks models of
other seeds, on which the settings of this file were looked at; floors are those of the profile.

JSON keys: ``models``, ``positives`` and ``recall`` of each role, ``decoys``, ``decoy_rate`` and
``wrong``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from analyses.benchmarks.result import write_result
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.errors import need
from prooflens.machine import one_thread
from prooflens.roles import find_roles
from prooflens.tasks import Batch

__all__ = ["LowRank", "low_rank", "plant_low_rank"]

_SCORED, _TUNED = 7000, 9000
"""First seed of the models that are scored, and of those on which settings were tuned."""

_ROWS, _LENGTH, _TOKENS, _HEADS = 96, 20, 8, 4
_NOISE, _SHARP, _WRITES = 0.2, 2.0, 10.0
"""Size of the noise as a share of that of the weights; size of the queries; size of what is
written."""

_KINDS = ("random", "moved", "classes", "avoided")
_ROLES = ("symbol-equality", "copying")


@dataclass(frozen=True)
class LowRank:
    """A model with its rows and the true roles of its heads.

    Attributes:
        model, rows: The model, and the rows on which roles are looked for.
        roles: Role → the head that has it.
    """

    model: SequenceTransformer
    rows: Batch
    roles: Mapping[str, int]


def plant_low_rank(seed: int) -> LowRank:
    """Build the model of a seed: heads of 8 or 16 dimensions, and eight or sixteen times as many
    tokens."""
    generator = torch.Generator().manual_seed(seed)
    d_head, times = (8, 16)[seed % 2], (8, 16)[seed // 2 % 2]
    vocabulary, half = d_head * times, 2 * d_head
    spec = TransformerSpec(
        d_in=vocabulary,
        d_out=vocabulary,
        n_ctx=_LENGTH,
        d_model=2 * half + _LENGTH,
        n_layers=1,
        n_heads=_HEADS,
        d_head=d_head,
        input="tokens",
        positions="learned",
        dtype="float64",
    )
    model, sides = SequenceTransformer(spec, seed=seed), _Sides(half, d_head, generator)
    shared, own = (sides.normal(vocabulary // 2, half) for _ in range(2))
    embedded = torch.zeros(vocabulary, spec.d_model, dtype=torch.float64)
    embedded[:, : 2 * half] = torch.cat((torch.cat((shared, own), 1), torch.cat((shared, -own), 1)))
    order = torch.randperm(_HEADS, generator=generator).tolist()
    looks = [_KINDS[(seed + k) % len(_KINDS)] for k in range(2)]
    plans = [("equal", "places"), ("random", "equal"), *((kind, kind) for kind in looks)]
    with torch.no_grad():
        model.W_E.copy_(embedded)
        model.W_U.copy_(embedded.mT)
        places = torch.eye(_LENGTH, spec.d_model, dtype=torch.float64).roll(2 * half, 1)
        model.get_parameter("pos_embed.W_pos").copy_(places)
        attn = model.blocks[0].attn
        for head, (qk, ov) in zip(order, plans, strict=True):
            query, key = sides.circuit(qk)
            value, out = sides.circuit("random" if ov == "avoided" else ov)
            sign = (-1.5 if seed // 4 % 2 else 1.5) if head == order[1] else 1.0
            for weights, wanted in (
                (attn.W_Q, _SHARP * query), (attn.W_K, key),
                (attn.W_V, _WRITES * value), (attn.W_O, sign * out),
            ):  # fmt: skip
                wanted = wanted.mT if weights is attn.W_O else wanted
                weights[head] = sides.add_noise(wanted)
    named = torch.stack([torch.randperm(vocabulary, generator=generator) for _ in range(_ROWS)])
    drawn = torch.randint(_TOKENS, (_ROWS, _LENGTH), generator=generator)
    tokens = named.gather(1, drawn)
    mask = torch.ones(_ROWS, _LENGTH, dtype=torch.bool)
    return LowRank(model, Batch(tokens, tokens, mask), dict(zip(_ROLES, order[:2], strict=True)))


class _Sides:
    """Draws pairs of maps ``[d_model, d_head]`` whose product is a circuit.

    Args:
        half: The number of directions that the tokens of a pair share, and of those in which they
            differ.
        d_head: The circuits' rank.
        generator: Source of all random numbers.
    """

    def __init__(self, half: int, d_head: int, generator: torch.Generator) -> None:
        self._half, self._d_head, self._generator = half, d_head, generator

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64)

    def circuit(self, kind: str) -> tuple[Tensor, Tensor]:
        """Return the two maps of a circuit of the given kind."""
        if kind == "random":
            return self._directions(), self._directions()
        if kind == "places":
            places = self._directions()
            places[: 2 * self._half] = 0.0
            places[2 * self._half :] = 2.0 * self.normal(_LENGTH, self._d_head)
            return places, self._directions()
        basis = self._directions(shared=kind == "classes")
        other = basis.clone()
        if kind == "moved":
            other[self._half : 2 * self._half] *= -1
        return basis, -basis if kind == "avoided" else other

    def add_noise(self, weights: Tensor) -> Tensor:
        """Return the weights with noise of a fifth of their root mean square."""
        size = weights.square().mean().sqrt()
        return weights + _NOISE * size * self.normal(*weights.shape)

    def _directions(self, *, shared: bool = False) -> Tensor:
        """Return random orthonormal directions in the space of tokens, or in that of what pairs
        share."""
        found = torch.zeros(2 * self._half + _LENGTH, self._d_head, dtype=torch.float64)
        size = self._half if shared else 2 * self._half
        found[:size] = torch.linalg.qr(self.normal(size, self._d_head)).Q
        return found


@one_thread()
def low_rank(models: int = 60, *, tune: bool = False) -> dict[str, Any]:
    """Measure which roles are confirmed in models with low-rank circuits.

    Args:
        models: The number of models.
        tune: Whether to use the models that settings were tuned on, instead of the scored ones.

    Raises:
        ArgumentError: for fewer than one model.
    """
    need("low_rank", models >= 1, "models", "must be at least 1", models, "e.g. 60")
    started, console = time.perf_counter(), Console(stderr=True)
    first, hits, false, decoys = (_TUNED if tune else _SCORED), dict.fromkeys(_ROLES, 0), 0, 0
    wrong = []
    for seed in track(
        range(first, first + models), "models", console=console, disable=not console.is_terminal
    ):
        one = plant_low_rank(seed)
        roles = find_roles(one.model, one.rows, targets=False, seed=seed)
        confirmed = roles[roles["status"] == "confirmed"]
        for role in _ROLES:
            named = set(confirmed[confirmed["role"] == role]["head"].tolist())
            hits[role] += one.roles[role] in named
            decoys += _HEADS - 1
            false += len(named - {one.roles[role]})
            missed = [] if one.roles[role] in named else [one.roles[role]]
            wrong += [f"{seed}: missed {role} L0H{head}" for head in missed]
            wrong += [f"{seed}: {role} L0H{head}" for head in sorted(named - {one.roles[role]})]
    return {
        "models": models,
        "positives": models,
        "recall": {role: found / models for role, found in hits.items()},
        "decoys": decoys,
        "decoy_rate": false / decoys,
        "wrong": wrong,
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    """Run the benchmark, print its JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of circuits of low rank.")
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--tune", action="store_true", help="Ask the models of other seeds.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    write_result(low_rank(options.models, tune=options.tune), options.out)
