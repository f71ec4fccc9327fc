"""Random small models in which something is degenerate, as checkpoints with a task of their own."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from interp.models.checkpoint import save_checkpoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Task
from interp.tasks.catalogue import task_from_dict

__all__ = ["FAULTS", "TASKS", "make"]

Model = SequenceTransformer
TASKS: dict[str, dict[str, Any]] = {
    "one lag": {"kind": "fixed_memory", "lags": [1], "length": 2},
    "many lags": {"kind": "fixed_memory", "lags": [1, 3], "length": 6},
    "length two": {"kind": "maximum", "vocabulary": 4, "length": 2},
    "vocabulary two": {"kind": "maximum", "vocabulary": 2, "length": 3},
    "equal rows": {"kind": "repeated_tokens", "vocabulary": 4, "length": 6, "periods": [2, 2]},
    "repeated": {"kind": "repeated_tokens", "vocabulary": 9, "length": 10, "periods": [2, 4]},
}

_GPT2 = 0.5
"""How many of the models of tokens have what GPT-2 has, for inspect."""


def _zero_head(model: Model) -> None:
    for block in model.blocks:
        for name, weight in block.attn.named_parameters():
            if name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
                weight[0] = 0


def _twins(model: Model) -> None:
    for block in model.blocks:
        for name, weight in block.attn.named_parameters():
            if name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
                weight[:] = weight[:1]


def _constant(model: Model) -> None:
    """What is read tells the positions and tokens apart by nothing."""
    for name, weight in model.named_parameters():
        if name.startswith(("embed", "W_E", "W_pos", "pos_embed", "W_in")):
            weight[:] = 1.0


def _rank_one(model: Model) -> None:
    for weight in model.parameters():
        if weight.ndim >= 2:
            weight[:] = weight[..., :1, :]


def _scaling(size: float) -> Callable[[Model], None]:
    def scale(model: Model) -> None:
        for weight in model.parameters():
            weight *= size

    return scale


FAULTS: dict[str, Callable[[Model], None]] = {
    "zero head": _zero_head,
    "twins": _twins,
    "constant": _constant,
    "rank one": _rank_one,
    "all zero": _scaling(0.0),
    "near zero": _scaling(1e-30),
    "large": _scaling(1e3),
    "overflow": _scaling(1e25),
    "none": _scaling(1.0),
}


def make(seed: int, folder: Path) -> str:
    """Write a model; its words: task, fault, sizes."""
    rng = random.Random(seed)  # noqa: S311
    fault, spoil = rng.choice(list(FAULTS.items()))
    words = rng.choice(list(TASKS))
    task = task_from_dict(TASKS[words])
    options = _sizes(task, rng) | {
        "n_layers": rng.choice((1, 2)),
        "n_heads": rng.choice((1, 2, 3)),
        "d_head": rng.choice((1, 2)),
        "ffn": rng.choice(((), (1,), (3,))),
        "norm": rng.choice(("none", "layernorm")),
        "positions": rng.choice(("none", "learned")),
        "dtype": rng.choice(("float32", "float64", "float16", "bfloat16")),
        "d_model": rng.choice((1, 2, 4)),
    }
    if rng.random() < _GPT2 and "input" not in options:
        options |= {"d_model": options["n_heads"] * options["d_head"]}
        options |= {"activation": "gelu"} if options["ffn"] else {}
        options |= {"norm": "layernorm", "positions": "learned", "dtype": "float32"}
    spec = TransformerSpec(**options)
    model = SequenceTransformer(spec, seed=seed)
    with torch.no_grad():
        spoil(model)
        for weight in model.parameters():
            most = torch.finfo(weight.dtype).max
            weight.clamp_(-most, most)
    save_checkpoint(model, folder, about={"task": TASKS[words]})
    if spec.input == "tokens":
        folder.with_name("ones.txt").write_text("1\n" * 24)  # equal rows of one token
    return f"{seed}: {words}, {fault}, {spec}"


def _sizes(task: Task, rng: random.Random) -> dict[str, Any]:
    """What the task's rows ask of a spec."""
    batch = task.sample(64, seed=0)
    length = {"n_ctx": batch.inputs.shape[1] + rng.choice((0, 3))}
    if batch.inputs.is_floating_point():
        return length | {
            "input": "real",
            "d_in": batch.inputs.shape[-1],
            "d_out": batch.targets.shape[-1],
        }
    size = int(max(batch.inputs.max(), batch.targets.max())) + 1
    return length | {"d_in": size, "d_out": size}
