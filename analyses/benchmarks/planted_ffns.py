"""Are FFNs' roles found where they are written down, and not in decoys?

    python -m analyses benchmark planted_ffns [--seeds 8] [--out FILE]

One layer without norms in a random basis, every weight off by two percent or so; heads fetch the
inputs one and two positions back, and the FFN is written down:

    gating       x_{t−1} or x_{t−2}, as the sign of a second channel says
    unmixing     x_{t−1} out of (x_{t−1} + 2 x_{t−2}) / 3, for inputs of ±1
    sharpening   x_{t−1} out of an average in which it has most of the weight, for inputs of ±1
    passing-on   what a head fetched, or the token itself, from one coordinate to another
    lookup       |x_{t−1}| of what a head fetched: a table over one number, which no answer names

The output is what the FFN writes. In decoys nothing may be found: *unread*, the same FFN where the
output reads what heads wrote; *random*, an FFN with random weights whose input is the same and
whose unembedding is fitted to the same answer, so that it is needed for what any FFN would give;
and *erasing*, an FFN that takes away what the output would else add to its answer (of
``passing-on`` alone).

All but the unread ones are tables over what they read, and needed, decoys too: as ``lookup`` they
are rightly found, which is counted for the last kind alone. A table over what a head fetched passes
it on.

What is planted is a plain form of each role. That trained FFNs of this kind are found is not shown
here (``benchmark faithfulness`` runs tables in their place).

JSON keys: ``recall`` (role → share found), ``false`` (confirmed roles of an FFN that are not
planted, nor true besides), ``decoys``, ``decoy_rate`` (share of decoys with any other confirmed
role of the FFN), ``wrong``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analyses.benchmarks.result import write_result
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.roles import find_roles
from prooflens.tasks import Batch, Memory

__all__ = ["KINDS", "PlantedFFN", "confirmed_roles", "main", "plant"]

KINDS = {
    "gating": "gating",
    "unmixing": "unmixing",
    "sharpening": "sharpening",
    "heads passed on": "passing-on",
    "token passed on": "passing-on",
    "table": "lookup",
}
"""Kind of planted FFN → the role that it has."""

DECOYS = ("unread", "random", "erasing")
_OF_SIGNS = ("unmixing", "sharpening")
"""Kinds that are planted in models with inputs ±1."""

_LENGTH, _WIDTH, _HIDDEN, _NOISE, _SHARP = 16, 24, 32, 0.02, 30.0
_NOW, _GATE, _FIRST, _SECOND, _OUT = 0, 1, 4, 5, 8
"""Coordinates of the residual stream: the two input channels, the outputs of the two heads, and the
output of the FFN."""

_OPTIONS: dict[str, Any] = {
    "n_heads": 2,
    "d_head": 1,
    "ffn": (_HIDDEN,),
    "input": "real",
    "score": "none",
    "lag_bias": "table",
    "dtype": "float64",
}

_Neuron = tuple[dict[int, float], float, float]
"""What a neuron reads by coordinate, its bias, and how much of it is written."""


@dataclass(frozen=True)
class PlantedFFN:
    """A model whose FFN has a known role, or none.

    Attributes:
        model: The model.
        rows: Rows of its task; their latents include the memories.
        memories: The memories of the task.
        role, target: The role of the FFN and its target; empty for a decoy.
        besides: Roles and targets that it has as well, or may have; an empty target is any.
    """

    model: SequenceTransformer
    rows: Batch
    memories: tuple[Memory, ...]
    role: str = ""
    target: str = ""
    besides: frozenset[tuple[str, str]] = frozenset()


def plant(kind: str, seed: int, decoy: str = "") -> PlantedFFN:
    """Build a model whose FFN has a role, or a decoy.

    Args:
        kind: One of :data:`KINDS`.
        seed: Seed of the rows, the basis and the noise.
        decoy: One of :data:`DECOYS`, or empty.
    """
    rows, memory = _rows(kind, seed, decoy)
    spec = TransformerSpec(2, 1, _LENGTH, _WIDTH, n_layers=1, **_OPTIONS)
    model = SequenceTransformer(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        ffn = model.blocks[0].mlp
        random = [weight.clone() for weight in ffn.parameters()]
        for weight in model.parameters():
            weight.zero_()
        _write_heads(model, kind)
        if decoy == "random":
            for weight, drawn in zip(ffn.parameters(), random, strict=True):
                weight.copy_(drawn + 0.3 * torch.randn(drawn.shape, generator=generator))
        else:
            _write_ffn(model, _neurons(kind))
            ffn.b_out[_OUT] = -1.0 if kind in _OF_SIGNS else 0.0
        model.unembed.W_U[_OUT] = 1.0
        if decoy == "erasing":
            ffn.W_out.neg_()
            model.unembed.W_U[[_source(kind), _GATE]] = 1.0
        if decoy == "unread":
            model.unembed.W_U.zero_()
            model.unembed.W_U[[_FIRST, _NOW]] = 1.0
        if decoy == "random":
            stream = _after(model, rows)[rows.mask]
            fitted = torch.linalg.lstsq(stream, rows.targets[rows.mask].double(), driver="gelsd")
            model.unembed.W_U.copy_(fitted.solution)
        if decoy != "random":
            for name, weight in model.named_parameters():
                noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                weight.mul_(1 + _NOISE * noise * ("table" not in name))
        _turn(model, generator)
    found = ("", "") if decoy else (KINDS[kind], _target(kind, memory))
    besides = set[tuple[str, str]]()
    if found[0] == "lookup":
        besides = {("passing-on", "heads")}
    elif decoy != "unread":
        exact = KINDS[kind] == "passing-on" and decoy != "random"
        besides = {("lookup", ("x[t]" if "token" in kind else "x[t-1]") if exact else "")}
    return PlantedFFN(model.eval(), rows, (memory,), *found, frozenset(besides))


def confirmed_roles(one: PlantedFFN) -> set[tuple[str, str]]:
    """The confirmed roles of the FFN, with their targets, but for those that it has besides."""
    roles = find_roles(one.model, one.rows, memories=one.memories)
    ffns = roles[(roles["component"] == "ffn") & (roles["status"] == "confirmed")]
    found = {*zip(ffns["role"], ffns["target"], strict=True)} - one.besides
    return {claim for claim in found if (claim[0], "") not in one.besides}


def _target(kind: str, memory: Memory) -> str:
    return kind.split()[0] if KINDS[kind] == "passing-on" else memory.name


def _rows(kind: str, seed: int, decoy: str) -> tuple[Batch, Memory]:
    generator = torch.Generator().manual_seed(1000 + seed)
    x = 2 * torch.rand(128, _LENGTH, generator=generator) - 1
    if kind in _OF_SIGNS:
        x = torch.where(x >= 0, 1.0, -1.0)
    gate = torch.where(torch.rand(x.shape, generator=generator) < 0.5, 1.0, -1.0)
    back: list[Tensor] = [torch.nn.functional.pad(x, (lag, 0))[:, :_LENGTH] for lag in (1, 2)]
    lag = torch.where(gate > 0, 1.0, 2.0)
    chosen = torch.where(gate > 0, back[0], back[1])
    answers = {"gating": chosen, "token passed on": x, "table": back[0].abs()}
    answer = answers.get(kind, back[0])
    answer = gate if decoy == "erasing" else answer
    scored = torch.ones(x.shape, dtype=torch.bool)
    scored[:, :3] = False
    memory = Memory("x[t-1]", 1)
    latents: dict[str, Tensor] = {"x[t]": x, "x[t-1]": back[0]}
    if kind == "gating":
        memory = Memory("x[t-s]", "s", round=1)
        latents = {"x[t]": x, "s": lag, "x[t-s]": chosen}
    return Batch(torch.stack([x, gate], -1), answer[..., None], scored, latents), memory


def _write_heads(model: SequenceTransformer, kind: str) -> None:
    """Set two heads that attend one and two positions back; where the task mixes lags, the first
    one attends to several."""
    attn = model.blocks[0].attn
    model.embed.W_E[[0, 1], [_NOW, _GATE]] = 1.0
    attn.W_V[:, _NOW, 0] = 1.0
    attn.W_O[0, 0, _FIRST] = 1.0
    attn.W_O[1, 0, _SECOND] = float(kind == "gating")  # elsewhere it would be found apart
    table = attn.terms["table"].bias
    for head, lag in enumerate((1, 2)):
        table[head, lag] = _SHARP
    shares = {"unmixing": (1 / 3, 2 / 3), "sharpening": (0.85, 0.1, 0.05)}.get(kind, ())
    for lag, share in enumerate(shares, 1):
        table[0, lag] = _SHARP + torch.tensor(share).log()


def _neurons(kind: str) -> list[_Neuron]:
    both = (1.0, -1.0)
    if kind == "gating":
        gates = ((_FIRST, 1.0), (_SECOND, -1.0))
        return [({at: sign, _GATE: side}, -1.0, sign) for at, side in gates for sign in both]
    if kind == "unmixing":
        return [
            ({_FIRST: 1.0}, at, slope) for at, slope in ((1.0, 3.0), (1 / 3, -6.0), (-1 / 3, 6.0))
        ]
    if kind == "sharpening":
        return [({_FIRST: 1.0}, 0.5 * sign, 2.0 * sign) for sign in both]
    return [({_source(kind): sign}, 0.0, 1.0 if kind == "table" else sign) for sign in both]


def _source(kind: str) -> int:
    return _NOW if kind == "token passed on" else _FIRST


def _write_ffn(model: SequenceTransformer, neurons: Sequence[_Neuron]) -> None:
    ffn = model.blocks[0].mlp
    for at, (reads, bias, written) in enumerate(neurons):
        for coordinate, weight in reads.items():
            ffn.W_in[coordinate, at] = weight
        ffn.b_in[at], ffn.W_out[at, _OUT] = bias, written


def _after(model: SequenceTransformer, rows: Batch) -> Tensor:
    name = "blocks.0.hook_resid_post"
    _, cache = model.run_with_cache(rows.inputs.double(), names_filter=[name])
    found: Tensor = cache[name]
    return found


def _turn(model: SequenceTransformer, generator: torch.Generator) -> None:
    """Rotate the residual stream's basis at random, in place."""
    drawn = torch.randn(_WIDTH, _WIDTH, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(drawn).Q
    attn, ffn = model.blocks[0].attn, model.blocks[0].mlp
    for written in (model.embed.W_E, attn.W_O, attn.b_O, ffn.W_out, ffn.b_out):
        written.copy_(written @ basis)
    for read in (attn.W_V, ffn.W_in, model.unembed.W_U):
        read.copy_(basis.T @ read)


def main() -> None:
    """Run the benchmark, print its JSON, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description="Benchmark of FFNs' roles on planted FFNs.")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    write_result(measure_recall(range(options.seeds)), options.out)


def measure_recall(seeds: Sequence[int]) -> dict[str, Any]:
    """Return the recall of the planted roles, and the roles that are found in decoys."""
    hits: dict[str, list[bool]] = {}
    wrong, false, taken, decoys = [], 0, 0, 0
    for name, kind, one in _models(seeds):
        found, planted = confirmed_roles(one), {(one.role, one.target)} if one.role else set()
        if planted:
            hits.setdefault(kind, []).append(planted <= found)
            false += len(found - planted)
        else:
            decoys += 1
            taken += bool(found)
        if found != planted:
            wrong.append(f"{name}: {sorted(found)}")
    return {
        "recall": {kind: sum(found) / len(found) for kind, found in hits.items()},
        "false": false,
        "decoys": decoys,
        "decoy_rate": taken / decoys,
        "wrong": wrong,
    }


def _models(seeds: Sequence[int]) -> Iterator[tuple[str, str, PlantedFFN]]:
    for seed in seeds:
        for kind in KINDS:
            erasing = KINDS[kind] == "passing-on"
            for decoy in ("", *DECOYS[: 3 if erasing else 2]):
                yield f"{kind} {decoy or 'planted'} {seed}", kind, plant(kind, seed, decoy)


if __name__ == "__main__":
    main()
