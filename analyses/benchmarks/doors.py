"""Do the doors agree? The same model through every door, and the role tables side by side.

A *pair* is a model and a door. The reference is Python's ``find_roles`` on our own checkpoint, with
the same profile, rows and seed; what a door has no evidence for must be missing and say so
(:mod:`analyses.benchmarks.same_roles`).

    language   Python: from the exported GPT-2 folder through TransformerBridge; transformers' own
               module, wrapped (no weights by name); a store of the repeated rows (no causes).
               ``prooflens inspect``: of the checkpoint, of the exported folder
    task       Python: the module wrapped (no weights by name). ``prooflens inspect``: of the
               checkpoint; of its store; of the same store when the model is gone (no causes).
               ``prooflens demo``, of its model

``doors_agree`` is the share of pairs without a difference. Agreement says that the doors share one
engine, not that the engine is right: for that there is ``f1``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from analyses.benchmarks import by_content, composed, language
from analyses.benchmarks.circuits import Shared, Sizes, construct_circuit
from analyses.benchmarks.known import Built
from analyses.benchmarks.needed import construct_needed
from analyses.benchmarks.pool import measure_all
from analyses.benchmarks.same_roles import differences
from analyses.benchmarks.scoring import COMPOSED
from prooflens.architectures import (
    SequenceTransformer,
    WrappedModule,
    export_gpt2,
    load_pretrained,
    save_checkpoint,
    wrap,
)
from prooflens.inspection import inspect
from prooflens.roles import LANGUAGE, ROLES, TASK, candidates, find_roles, rows_of, token_trials
from prooflens.store import ActivationStore, extract, stored_batch
from prooflens.tasks import answers_of, memories_of, role_variables
from prooflens.trained import load

__all__ = ["Doors", "measure_doors", "models"]

_ROWS, _SEED = 256, 0
_LANGUAGE = ("induction-attention", "induction-mlp")
_CIRCUITS = (
    "induction-16-20-2",
    "pointer-24-20-1",
    "previous-copy-16-18-2",
    "previous-negative-12-24-2",
    "duplicate-negative-9-20-2",
    "first-negative-20-20-2",
    "window-copy-40-20-1",
    "copy-suppression looked-up-12-26-2",
    "successor taken-back-12-24-2",
    "bos-gated class-14-24-2",
    "composed found-14-26-2",
    "composed looked-for-12-26-2",
)
_TASK = (
    "fixed-memory-multiplexer",
    "template-same-different-a",
    "depth-L3-layers1",
    "depth-L4-layers2",
)
_DEMO, _DEMO_SEED = "fixed-memory-multiplexer", 10_007  # the demo draws its rows from that seed

Said = tuple[str, list[str]]
"""A door's name, and what differs there from the reference."""


@dataclass(frozen=True)
class Doors:
    """One model, and a function that asks it through all its doors.

    Attributes:
        name: The name of the model.
        ask: A function that yields every door with what differs there.
    """

    name: str
    ask: Callable[[], Iterator[Said]]


def measure_doors(workers: int, only: str = "") -> dict[str, Any]:
    """Compare all models whose name contains ``only`` through their doors.

    Returns:
        ``doors`` (the number of comparisons), ``doors_agree`` (the share of them without a
        difference) and ``doors_differ`` (the differences).
    """
    chosen = [one for one in models() if only in one.name]
    pairs = [pair for found in measure_all(_operations, chosen, workers) for pair in found]
    differ = {f"{name}: {door}": told for name, door, told in pairs if told}
    share = 1 - len(differ) / len(pairs) if pairs else 0.0
    return {"doors": len(pairs), "doors_agree": share, "doors_differ": differ}


def _operations(one: Doors) -> list[tuple[str, str, list[str]]]:
    torch.set_num_threads(1)
    return [(one.name, door, told) for door, told in one.ask()]


def models() -> list[Doors]:
    """The shipped models and circuits that are compared, each with its doors."""
    found = [Doors(name, partial(_language, partial(_load_shipped, name))) for name in _LANGUAGE]
    built = (language, by_content, composed)
    circuits = {one.name: one for some in built for one in some.subjects()}
    for name in _CIRCUITS:
        found.append(Doors(name, partial(_language, circuits[f"language {name}"].make)))
    found.append(Doors("two heads share induction", partial(_language, _shared_heads)))
    found.append(Doors("a head needed for everything", partial(_language, _build_needed)))
    found += [Doors(name, partial(_task, name)) for name in _TASK]
    return [*found, Doors(f"{_DEMO}, demo", _demo)]


def _load_shipped(name: str) -> Built:
    shipped = load(name)
    return Built(shipped, frozenset(), frozenset(), getattr(shipped.card.task, "bos", -1))


def _shared_heads() -> Built:
    made = construct_circuit("induction", Sizes(16, 18, 4, False), shared=Shared(1, 2, False))
    return Built(made.model, frozenset(), frozenset(), -1)


def _build_needed() -> Built:
    model, exempt = construct_needed("induction", Sizes(13, 21, 3, False))
    return Built(model, frozenset(), exempt, -1)


def _language(make: Callable[[], Built]) -> Iterator[Said]:
    """Compare a model of the language profile through its doors."""
    built = make()
    with tempfile.TemporaryDirectory() as folder:
        own, exported = Path(folder) / "own", Path(folder) / "gpt2"
        save_checkpoint(built.model, own, about={"task": {"bos": built.bos}})
        export_gpt2(built.model, exported, bos=built.bos)
        model = load_pretrained(own)
        rows = rows_of(token_trials(model, seed=_SEED)[0])
        asked: dict[str, Any] = {"profile": LANGUAGE, "seed": _SEED}
        reference = find_roles(model.model, rows, **asked)
        bridge = find_roles(load_pretrained(exported).model, rows, **asked)
        yield "Python, TransformerBridge", differences(reference, bridge)
        wrapped = find_roles(_wrap_gpt2(exported, rows["repeated"].inputs[:2]), rows, **asked)
        yield "Python, wrapped module", _lacking(reference, wrapped, weights=False)
        hooks = ["blocks.*.attn.hook_pattern"]
        store = extract(model.model, rows["repeated"], hooks, Path(folder) / "store")
        stored = candidates(store, profile=LANGUAGE)
        yield "Python, store", _lacking(reference, stored, weights=False, causes=False)
        for name, place in (("our checkpoint", own), ("GPT-2 folder", exported)):
            found = inspect(str(place), seed=_SEED).roles
            yield f"inspect, {name}", differences(reference, found)


def _task(name: str) -> Iterator[Said]:
    """Compare a model of the task profile through its doors."""
    shipped = load(name)
    known: dict[str, Any] = {
        "memories": memories_of(shipped.card.task),
        "answers": answers_of(shipped.card.task),
        "sought": role_variables(shipped.card.task),
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "heads"
        table, _ = _heads(name, out, "--rows", str(_ROWS))
        batch = stored_batch(ActivationStore(out / "store"))  # the rows that ``inspect`` drew
        reference = find_roles(shipped, batch, profile=TASK, seed=_SEED, **known)
        yield "inspect, our checkpoint", differences(reference, table)
        again, _ = _heads(str(out / "store"), Path(folder) / "again", "--profile", "task")
        yield "inspect, store", differences(reference, again)
        lost = Path(folder) / "lost"
        hooks = ["blocks.*.attn.hook_pattern"]
        extract(shipped, batch, hooks, lost, about={"model": "nowhere"})
        stored, said = _heads(str(lost), Path(folder) / "stored")
        plain = find_roles(shipped, batch, profile=TASK, seed=_SEED)
        gone = dict.fromkeys(ROLES, "no model" if "no model can be run" in said else "")
        seen = {"previous-token", "sink", "local"}
        unsought = {role: why for role, why in gone.items() if role not in seen}
        told = differences(plain, stored, causes=False, unsought=unsought)
        yield "inspect, store without its model", told
    wrapped = find_roles(_wrap_own(shipped, batch.inputs[:2]), batch, seed=_SEED)
    yield "Python, wrapped module", _lacking(plain, wrapped, weights=False)


def _demo() -> Iterator[Said]:
    """Compare the demo's trained model with Python on the demo's own rows."""
    shipped = load(_DEMO)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "demo"
        _command("demo", "--out", str(out))
        roles = pd.read_csv(out / "roles.csv")
    batch = shipped.card.task.sample(_ROWS, seed=_DEMO_SEED)
    reference = find_roles(
        shipped,
        batch,
        memories=memories_of(shipped.card.task),
        answers=answers_of(shipped.card.task),
        seed=_DEMO_SEED,
    )
    yield "demo", differences(reference, roles[roles["model"] == "trained"])


def _lacking(
    reference: pd.DataFrame, asked: pd.DataFrame, *, weights: bool = True, causes: bool = True
) -> list[str]:
    """Return the differences between two role tables. Roles that a door cannot test do not count,
    if it says why."""
    told: Mapping[str, str] = asked.attrs.get("lacks", {})
    reads = {"copying", "copy-suppression", "successor", "symbol-equality", *COMPOSED}
    reads = set[str]() if weights else reads
    needs = {"duplicate-token", "positional", "bos-gated"} if not causes else set[str]()
    unsought = {role: told.get(role, "") for role in reads | needs}
    return differences(reference, asked, causes=causes, unsought=unsought)


def _heads(model: str, out: Path, *more: str) -> tuple[pd.DataFrame, str]:
    """Run ``prooflens inspect`` and return its role table and its output."""
    said = _command("inspect", model, "--out", str(out), "--seed", str(_SEED), *more)
    return pd.read_csv(out / "roles.csv"), said


def _command(*words: str) -> str:
    """Run the command line and return its output, whatever its exit code. For a store without its
    model ``inspect`` exits with an error after it has written the table."""
    done = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-m", "prooflens", *words], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def _wrap_gpt2(folder: Path, example: torch.Tensor) -> WrappedModule:
    """Return transformers' own GPT-2 class, with hooks from :func:`interp.models.wrap.wrap`."""
    from transformers import GPT2LMHeadModel

    module: Any = GPT2LMHeadModel.from_pretrained(
        folder,
        attn_implementation="eager",
        reorder_and_upcast_attn=True,  # the path whose pattern passes through a submodule
        use_safetensors=True,
        dtype=torch.float32,
    )
    names: dict[str, str] = {}
    for layer in range(module.config.n_layer):
        block = f"transformer.h.{layer}"
        names |= {
            f"blocks.{layer}.hook_resid_pre": f"{block}:in",
            f"blocks.{layer}.attn.hook_pattern": f"{block}.attn.attn_dropout:out",
            f"blocks.{layer}.attn.hook_z": f"{block}.attn.c_proj:in/{module.config.n_head}",
            f"blocks.{layer}.hook_resid_post": f"{block}:out",
        }
    return wrap(module.eval(), names, example=example, output="logits")


def _wrap_own(model: SequenceTransformer, example: torch.Tensor) -> WrappedModule:
    """Return one of our models, wrapped like any module through the outputs of its hook points."""
    kinds = ("attn.hook_pattern", "attn.hook_z", "hook_resid_pre", "hook_resid_post")
    names = {hook: f"{hook}:out" for hook in model.hook_dict if hook.split(".", 2)[-1] in kinds}
    return wrap(model, names, example=example)
