"""Is a certificate ever on the wrong side of the truth? Small models of every kind, enumerated.

    python -m analyses benchmark certify_truth [--models 260] [--out FILE.json]

Fixed memories, prefix prediction, templates with real and with symbolic labels, and the maximum, in
models of one and two layers with every norm, kind of position and normaliser that is covered, sixty
of them of the kinds whose two layers are bounded together: most of random weights, every fifth
(of these every second) trained. Weights are scaled to the limits of float32 and to zero,
scores until they saturate, outputs until they nearly tie. The truth comes from running the model
itself, in float64 and in float32, over inputs that are enumerated here. What is no number is wrong.

Of each certificate: no bound lies beyond the truth; the checker confirms what is claimed, and
refuses a claim that is better than the truth. A table by kind, then a last line of JSON:
``models``, ``proofs``, ``non_vacuous``, ``violations``, ``unconfirmed``, ``forged`` (accepted
forgeries), the last three 0 or something is wrong.

Boxes of real inputs cannot be enumerated and are attacked elsewhere
(:mod:`analyses.benchmarks.certify`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, permutations, product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.certificates import TheoremFile, certify, check, sha256_of
from prooflens.errors import CheckpointError
from prooflens.tasks import FixedMemory, Maximum, PrefixPrediction, TemplateTask
from prooflens.trained import Training, TrainingRun, fit

__all__ = ["judge_model", "main", "model_of"]

_Options = dict[str, Any]
_LAGS: list[_Options] = [
    {"lag_bias": "table", "score": "none", "ffn": (6,)},
    {"lag_bias": "table", "score": "none", "ffn": (6,), "norm": "layernorm"},
    {"lag_bias": "lin", "score": "none", "normalizer": "none", "ffn": (6,)},
    {"lag_bias": "relative_keys", "score": "none", "n_layers": 2, "ffn": (4,), "norm": "rmsnorm"},
    {"positions": "learned", "ffn": (6,), "activation": "gelu"},
    {"lag_bias": "log", "score": "slope", "identity_ov": True},
    {"identity_qk": True, "positions": "sinusoidal", "norm": "layernorm", "ffn": (6,)},
    {"lag_bias": "bump", "score": "none", "n_layers": 2, "ffn": (4,)},
]
_TOKENS: list[_Options] = [
    {},
    {"positions": "learned"},
    {"ffn": (5,), "norm": "layernorm"},
    {"positions": "learned", "ffn": (5,), "n_layers": 2, "norm": "rmsnorm"},
    {"lag_bias": "log", "ffn": (4,), "residual": False},
    {"identity_qk": True, "mask_self": True, "ffn": (4,)},
]
_MIXED = 200
_TOGETHER: list[tuple[str, _Options]] = [
    ("templates", {"positions": "learned"}),
    ("strings", {}),
    ("templates", {"positions": "sinusoidal", "n_heads": 1}),
    ("strings", {"ffn": (5,), "norm": "layernorm", "activation": "gelu"}),
    ("templates", {"n_heads": (1, 2)}),
    ("strings", {"ffn": (5,), "norm": "rmsnorm", "n_heads": 1}),
]
"""Kinds and options of the models after the first two hundred. They have two layers, which are
bounded together."""
_TEMPLATES = (
    TemplateTask(("αα", "αβ"), (1.0, -1.0), train=(0, 5), test=(5, 10)),
    TemplateTask(("αβα", "αββ"), ("α", "β"), train=(0, 4), test=(4, 8)),
)
_SCALES = (
    *("none", "small", "large", "one part 1e12", "one part 1e30"),
    *("tiny outputs", "saturated", "near ties"),
)


def model_of(index: int) -> tuple[str, Any, Any]:
    """Return the kind, the model and the task with this number."""
    kind, seed = ("signs", "strings", "templates", "rows")[index % 4], _seed(index)
    options = (_LAGS if kind == "signs" else _TOKENS)[seed % (8 if kind == "signs" else 6)]
    base: _Options = {"n_layers": 1, "d_model": 6, "n_heads": 2, "d_head": 3}
    if index >= _MIXED:
        kind, options = _TOGETHER[index % len(_TOGETHER)]
        base["n_layers"] = 2
    task, sizes = _task(kind, seed if index < _MIXED or kind == "strings" else 1)
    if kind == "rows" and seed % 2:  # the three paths
        options, base = {"positions": "learned"}, base | {"n_heads": 1, "d_head": 6}
    spec = TransformerSpec(**base | sizes | options)
    together = index >= _MIXED
    if seed % 2 if together else seed % 5 == 4:
        steps = 400 if together else 120
        training = Training(steps=steps, batch=32, learning_rate=2e-2, warmup=10, seed=seed)
        return kind, _rescale(fit(TrainingRun("small", task, spec, training)).model, seed), task
    model: Any = SequenceTransformer(spec, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return kind, _rescale(model, seed), task


def _seed(index: int) -> int:
    return index // 4 if index < _MIXED else (index - _MIXED) // len(_TOGETHER)


def _task(kind: str, seed: int) -> tuple[Any, _Options]:
    if kind == "signs":
        return FixedMemory((1, 2), "table", length=4), {
            "d_in": 1,
            "d_out": 1,
            "n_ctx": 4,
            "input": "real",
        }
    if kind == "strings":
        k = 2 + seed % 2
        return PrefixPrediction(f"L_{k}", ((k, 6),)), {"d_in": 4, "d_out": 2, "n_ctx": 7}
    if kind == "rows":
        return Maximum(5, 3), {"d_in": 5, "d_out": 5, "n_ctx": 3}
    task = _TEMPLATES[seed % 2]
    v = task.vocabulary
    return task, {"d_in": v, "d_out": v if task.symbolic else 1, "n_ctx": task.length}


def _rescale(model: Any, seed: int) -> Any:
    """Change a model's weights in place in one of the ways of :data:`_SCALES`, which the seed
    chooses, and return it."""
    how, parts = _SCALES[seed % len(_SCALES)], [model.embed, model.blocks[0].attn, model.unembed]
    attn = model.blocks[-1].attn
    with torch.no_grad():
        if how in ("small", "large"):
            for weight in model.parameters():
                weight *= 1e-3 if how == "small" else 30.0
        elif how.startswith("one part"):
            for weight in parts[seed // 8 % 3].parameters():
                weight *= float(how.split()[-1])
        elif how == "tiny outputs":
            for weight in model.unembed.parameters():
                weight *= 1e-38
        elif how == "saturated":
            for name, weight in attn.named_parameters():
                if name in ("W_Q", "b_Q") or "terms" in name:
                    weight *= 1000.0
        elif how == "near ties":
            w, b = model.unembed.W_U, model.unembed.b_U
            w.copy_(w[:, :1] * (1 + 2.0**-22 * torch.arange(w.shape[1])))
            b.copy_(b[:1].expand_as(b))
    return model


def _enumerate_inputs(task: Any, kind: str) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield all inputs in batches, with the right answers at the last position and how often each
    input counts."""
    if kind == "signs":
        table = {tuple(k): float(v) for k, v in task.truth_table().items()}
        for n in range(max(task.lags) + 1, task.length + 1):
            x = torch.tensor(list(product((-1.0, 1.0), repeat=n)))
            lags = (0, *task.lags)
            f = [table[tuple(int(row[n - 1 - lag]) for lag in lags)] for row in x.tolist()]
            yield x[..., None], torch.tensor(f), 1
    elif kind == "strings":
        blocks = int(task.language.removeprefix("L_"))
        seen: Counter[tuple[int, ...]] = Counter()
        for n in range(task.bins[0][0], task.bins[0][1] + 1):
            for word in product((1, 2), repeat=n):
                if word[0] == 1 and _blocks(word) == blocks:
                    seen.update(word[:i] for i in range(1, n + 1))
        first = task.sample(1, seed=0).inputs[0]
        letters = [0, first[1], first[1:][first[1:] != first[1]][0]]  # BOS, a, b: a comes first
        for word, times in seen.items():
            ids = torch.tensor([[0, *(letters[letter] for letter in word)]])
            yield ids, torch.tensor([int(_blocks(word) == blocks)]), times
    elif kind == "rows":
        x = torch.tensor(list(product(range(task.vocabulary), repeat=task.length)))
        yield x, x.amax(1), 1
    else:
        for template, label in zip(task.templates, task.labels, strict=True):
            names = sorted(set(template))
            for drawn in permutations(range(*task.train), len(names)):
                token: Any = dict(zip(names, drawn, strict=True))
                answer = token[label] if isinstance(label, str) else label
                yield torch.tensor([[token[c] for c in template]]), torch.tensor([answer]), 1


def _blocks(word: tuple[int, ...]) -> int:
    return len(list(groupby(word)))


def _truth(model: Any, task: Any, kind: str, error: bool, dtype: torch.dtype) -> float:
    """Return the largest error over all inputs, or the share of inputs whose right output exceeds
    all others."""
    net, worst, right, total = model.to(dtype), 0.0, 0, 0
    for inputs, answers, times in _enumerate_inputs(task, kind):
        with torch.no_grad():
            out = net(inputs.to(dtype) if inputs.is_floating_point() else inputs)[:, -1].double()
        if error:
            off = (out[:, 0] - answers).abs()
            worst = max(worst, float(torch.where(off.isnan(), torch.inf, off).max()))
            continue
        own = out.gather(1, answers[:, None])
        ahead = (own > out).sum(1) == out.shape[1] - 1
        right, total = right + times * int(ahead.sum()), total + times * len(out)
    model.to(model.spec.torch_dtype)
    return worst if error else right / total


def judge_model(index: int) -> dict[str, Any]:
    """Certify one model and compare every proof with the truth."""
    kind, model, task = model_of(index)
    lags = {(0, 0): 1 + index % 3, (0, 1): 2} if kind == "signs" else None
    found = certify(model, task, lags=lags)
    error = found.kind == "error"
    dtypes = {"float64": torch.float64, "float32": torch.float32}
    truth = {n: _truth(model, task, kind, error, d) for n, d in dtypes.items()}
    wrong = []
    for proof in found.proofs:
        bound = found.safe(proof)
        held = ["float64", *(["float32"] if proof.arithmetic == "float32" else [])]
        beyond = [n for n in held if (bound < truth[n] if error else bound > truth[n])]
        wrong += [f"{proof.strategy}, {proof.arithmetic}: {bound} for {truth}"] if beyond else []
    claims = [p for p in found.proofs if not p.vacuous]
    real, sha = truth["float64"], sha256_of(model)
    better = real * 0.999 if error else np.nextafter(real, 2) + 1e-12
    return {
        "kind": kind,
        "scaled": _SCALES[_seed(index) % len(_SCALES)],
        "proofs": len(found.proofs),
        "non_vacuous": len(claims),
        "violations": wrong,
        "unconfirmed": [v.strategy for v in check(_data(found), model, sha) if not v.holds],
        "forged": _believed_strategies(_data(found, bound=float(better), vacuous=""), model, sha),
    }


def _data(found: TheoremFile, **changed: Any) -> _Options:
    """Return a certificate as it is read from a file, with the given entries changed in every
    claim."""
    data: _Options = json.loads(json.dumps(found.to_dict()))
    for proof in data["strategies"]:
        proof.update(changed)
    return data


def _believed_strategies(data: _Options, model: Any, sha: str) -> list[str]:
    """Return the strategies whose forged claims the checker accepts."""
    try:
        return [v.strategy for v in check(data, model, sha) if v.holds]
    except CheckpointError:
        return []


def main(
    models: Annotated[int, typer.Option(min=1, help="How many.")] = 260,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
) -> None:
    """Compare certificates of small models with the truth, by trying all inputs."""
    rows = []
    for index in range(models):
        rows.append(judge_model(index))
        for name in ("violations", "unconfirmed", "forged"):
            if rows[-1][name]:
                typer.echo(f"model {index} ({rows[-1]['scaled']}): {name}: {rows[-1][name]}")
    counted = ("proofs", "non_vacuous")
    listed = ("violations", "unconfirmed", "forged")
    for kind in ("signs", "strings", "templates", "rows"):
        own = [row for row in rows if row["kind"] == kind]
        sums = [sum(row[name] for row in own) for name in counted]
        sums += [sum(len(row[name]) for row in own) for name in listed]
        typer.echo(
            f"{kind:10} {len(own)} models, "
            + ", ".join(f"{n} {name}" for n, name in zip(sums, (*counted, *listed), strict=True))
        )
    found: _Options = {"models": len(rows)}
    found |= {name: sum(row[name] for row in rows) for name in counted}
    found |= {name: sum(len(row[name]) for row in rows) for name in listed}
    text = json.dumps(found)
    if out is not None:
        out.write_text(text + "\n")
    typer.echo(text)
