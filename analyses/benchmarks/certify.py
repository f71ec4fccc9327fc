"""What can be proved of every shipped model, and does a search find anything worse?

    python -m analyses benchmark certify [NAME …] [--seeds 2] [--out FILE.json]

Every strategy that does not take long, on the model's own task; programs of more than one layer on
strings of at most twelve letters, since boxes of longer ones say nothing and all strings are too
many. Then each certificate is attacked (:mod:`probes.certify.search`), in float64 and, where it is
said to hold in float32, in float32: gradient steps and sign flips for errors, descent through
covered rows for the maximum, every string for templates. A table, then a last line of JSON:
``non_vacuous``, ``vacuous``, ``refused``, ``violations`` (0, or something is wrong), ``rows``.

Seconds depend on the machine and on what else it does; multiplications do not.
"""

from __future__ import annotations

import json
import time
from copy import deepcopy
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from prooflens.architectures import SequenceTransformer
from prooflens.certificates import (
    Addressed,
    Averages,
    Domain,
    Proof,
    Signs,
    Strings,
    Templates,
    TheoremFile,
    caps_of,
    certify,
    domain_of,
    not_orderless,
    subsets,
    worst_error,
)
from prooflens.errors import ArgumentError
from prooflens.trained import load, zoo

__all__ = ["main", "measure", "wrong_rows"]

_LETTERS = 12
_FLOATS = {"float32": torch.float32, "float64": torch.float64}


def measure(name: str, seeds: int) -> dict[str, Any]:
    """Certify a shipped model and search for the worst input; return a row of the table."""
    model, started = load(name), time.perf_counter()
    task = getattr(model.card, "task", None)
    programs = hasattr(task, "bins") and isinstance(model, SequenceTransformer)
    length = _LETTERS if programs and model.spec.n_layers > 1 else None
    try:
        domain = domain_of(task, length=length)
        found = certify(model, domain, name=name)
    except ArgumentError as error:
        return {"model": name, "refused": str(error)}
    best = found.best
    attacked, broken = (
        (None, False) if best.vacuous else _attack(model, domain, found, range(1, 1 + seeds))
    )
    return {
        "model": name,
        "domain": found.statement,
        "kind": found.kind,
        "bound": found.safe(best),
        "measured": found.measured,
        "measured_on": found.measured_on,
        "attacked": attacked,
        "violated": broken,
        "strategy": best.strategy,
        "arithmetic": best.arithmetic,
        "multiplications": best.multiplications,
        "seconds": round(time.perf_counter() - started, 1),
        "vacuous": best.vacuous,
        "strategies": {p.strategy: _beside(found, p) for p in found.proofs},
        "skipped": dict(found.skipped),
    }


def _beside(found: TheoremFile, proof: Proof) -> dict[str, Any]:
    """Return bound, cost and unexplained remainder of a proof.

    For an error the remainder is everything except the answer at the middle of the worst cell. For
    an accuracy it is what was seen to be right and is not proved.
    """
    open_to = {name: part for name, part in proof.parts.items() if not name.startswith("answer")}
    bound = found.safe(proof)
    error = sum(open_to.values()) if isfinite(bound) and proof.parts else bound
    rest = error if found.kind == "error" else max(0.0, found.measured - bound)
    cost = {"multiplications": proof.multiplications, "seconds": round(proof.seconds, 2)}
    return {"bound": bound, "remainder": rest, **cost}


def _attack(
    model: Any, domain: Domain, found: TheoremFile, seeds: range
) -> tuple[float | None, bool]:
    """Search for the worst inputs of a model; return what was found, and whether it contradicts the
    theorem.

    What was found is the largest error, or else the number of wrong rows or a share.
    """
    best, bound = found.best, found.safe(found.best)
    dtypes = [torch.float64, *({_FLOATS[best.arithmetic]} if best.arithmetic in _FLOATS else ())]
    if isinstance(domain, Signs | Averages | Addressed):
        worst = max(
            worst_error(model, domain, seed=seed, dtype=d) for seed in seeds for d in dtypes
        )
        return worst, worst > bound
    if isinstance(domain, Templates | Strings):
        reached = [_on_every_string(model, domain, d) for d in dtypes]
        worst = min(reached) if found.kind == "accuracy" else max(reached)
        return worst, worst < bound if found.kind == "accuracy" else worst > bound
    caps = [caps_of(p) for p in found.proofs if "caps" in p.data and not p.vacuous]
    if caps:
        wrong = sum(
            wrong_rows(model, c, seed=s, dtype=d) for c in caps for s in seeds for d in dtypes
        )
        return float(wrong), wrong > 0
    return None, False


def wrong_rows(
    model: Any, caps: np.ndarray, *, seed: int, rows: int = 256, dtype: torch.dtype = torch.float32
) -> int:
    """Search by descent for rows of Max-of-K that a certificate covers and that the model gets
    wrong; return how many were found.

    The search begins at random covered rows. Position after position takes the token with the
    smallest margin.

    Args:
        model: The certified model.
        caps: ``[query, maximum, set of positions]``; see :func:`probes.certify.maximum.by_cubes`.
        seed: Seed of the random rows.
        rows: The number of rows.
        dtype: The number format that the model is run in.
    """
    net, rng = deepcopy(model).to(dtype).eval(), np.random.default_rng(seed)
    v, length = len(caps), int(np.log2(caps.shape[-1])) + 1
    covered = np.argwhere(caps >= 0)
    wrong = 0
    for q, m, index in covered[rng.integers(len(covered), size=rows)]:
        copies, cap = subsets(length)[index], int(caps[q, m, index])
        if not cap and len(copies) < length - 1:
            continue  # holds no row
        row = rng.integers(max(cap, 1), size=length)
        row[list(copies)], row[-1] = m, q
        for p in (p for p in range(length - 1) if p not in copies):
            tried = np.tile(row, (cap, 1))
            tried[:, p] = np.arange(cap)
            margin = _margins(net, tried, int(m), v)
            wrong += int((margin <= 0).sum())
            row = tried[margin.argmin()]
        wrong += int(_margins(net, row[None], int(m), v)[0] <= 0)
    return wrong


def _margins(net: Any, rows: np.ndarray, answer: int, v: int) -> np.ndarray:
    """Return by how much the right logit exceeds the largest other one."""
    with torch.no_grad():
        logits = net(torch.from_numpy(rows))[:, -1].double().numpy()
    return np.asarray(logits[:, answer] - np.delete(logits, answer, axis=1).max(1))


def _on_every_string(model: Any, domain: Templates | Strings, dtype: torch.dtype) -> float:
    """Return the worst error, or the accuracy, of the model on all strings. If the model does not
    see the order, one string stands for all with the same counts."""
    worst, right, total = 0.0, 0.0, 0.0
    net, cover = model.to(dtype), domain.points()
    if isinstance(domain, Strings) and not not_orderless(model):
        cover = domain.multisets()
    for cells in cover:
        ids: Any = cells.inputs
        with torch.no_grad():
            out = net(torch.from_numpy(ids))[:, -1].double().numpy()
        targets: Any = cells.targets
        if domain.kind == "error":
            worst = max(worst, float(np.abs(out - targets.centre).max()))
        else:
            right += float(cells.weight[out.argmax(-1) == targets].sum())
            total += float(cells.weight.sum())
    model.to(model.spec.torch_dtype)
    return worst if domain.kind == "error" else right / total


def _line(row: dict[str, Any]) -> str:
    if "refused" in row:
        return f"{row['model']:32} refused: {row['refused'][:100]}"
    attacked = "-" if row["attacked"] is None else f"{row['attacked']:.6g}"
    return (
        f"{row['model']:32} {row['kind']:8} {row['bound']:<12.6g} {row['measured']:<12.6g} "
        f"{attacked:12} {row['strategy']:12} {row['multiplications']:<10.3g} {row['seconds']:<7} "
        f"{row['arithmetic']:8} {row['vacuous'] or 'says something'}"
    )


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Shipped models. [default: all]")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Searches of each certificate.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON here.")] = None,
) -> None:
    """Prove what can be proved of the shipped models, and attack it."""
    heads = ("model", "kind", "bound", "measured", "attacked", "strategy", "mult.", "seconds")
    typer.echo("{:32} {:8} {:12} {:12} {:12} {:12} {:10} {:7}".format(*heads))
    rows = []
    for name in names or zoo.names():
        rows.append(measure(name, seeds))
        typer.echo(_line(rows[-1]))
    proved = [row for row in rows if "refused" not in row]
    found = {
        "non_vacuous": sum(not row["vacuous"] for row in proved),
        "vacuous": sum(bool(row["vacuous"]) for row in proved),
        "refused": len(rows) - len(proved),
        "violations": sum(row["violated"] for row in proved),
        "rows": rows,
    }
    text = json.dumps(found, default=str)
    if out is not None:
        out.write_text(text + "\n")
    typer.echo(text)
