"""All roles of a model on some inputs, or what a store's patterns alone can say.

    find_roles(model, batch, memories=…, answers=…)   every role
    candidates(store)                                 attention roles, none of them confirmed

The attention and circuit roles look at the model and its inputs; memories, rounds and readouts are
about the task's latents, which must be named. A role table has a row a component and role: strength
is the role's own number, p and q the largest of the tests it rests on, ``effect`` the last cause's
score, ``evidence`` a sentence with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from interp.errors import ArgumentError, HookError
from interp.heads.effects import components
from interp.store import ActivationStore
from interp.store.capture import evaluating
from interp.tasks.base import Batch
from interp.tasks.memory import AdaptiveMemory, FixedMemory, KernelMemory, RealMemory
from interp.tasks.memory.kernels import Kernel
from interp.tasks.template import TemplateTask
from probes.roles.attention import attention_roles, stored_roles
from probes.roles.circuits import circuit_roles
from probes.roles.decision import decide
from probes.roles.extraction import FOLDS, Memory, Reader, memory_roles
from probes.roles.rounds import readout_roles, round_roles

__all__ = ["answers_of", "candidates", "find_roles", "memories_of"]

_WEIGHTS = ("blocks", "ln_final", "unembed")
_MEMORY = ("memory-location", "memory-correction")
_LOOSE = {"dense": ("symbol-equality", *_MEMORY), "local": _MEMORY}
"""Role → the roles beside which it says nothing new."""


def find_roles(
    model: Any,
    batch: Batch,
    *,
    memories: Sequence[Memory] = (),
    answers: Mapping[str, Sequence[str]] | None = None,
    targets: bool = True,
    level: float = 0.01,
    seed: int = 0,
) -> pd.DataFrame:
    """Every head's, FFN's and layer's roles.

    Args:
        model: A hooked model; it is run in evaluation mode. Of a wrapped module the attention roles
            are told, ``symbol-equality`` and ``copying`` are not: they are read off weights.
        batch: Inputs, where they are scored, and the latents that are named; two rows at least,
            eight for memories and answers.
        memories: What the task says is fetched (:func:`memories_of`).
        answers: Latent → what it is computed from (:func:`answers_of`).
        targets: Whether the batch's targets may be read. One role needs them: without an induction
            head's attention the loss must rise. If they are not known, a change of the output
            must do.
        level: False-discovery rate.
        seed: Of permutations, repeated rows and fresh models.

    Returns:
        Columns :data:`~probes.roles.decision.ROLE_COLUMNS`, and ``tests``: JSON text, every test
        that a row rests on with its score, floor, p, q and 95 % interval.

    Raises:
        ArgumentError: for a module without hooks; for memories or answers of a wrapped one; for
            too few rows; for a model whose attention or output is not finite on them.
        HookError: for a model whose attention patterns no hook shows.
    """
    _check(model, len(batch), bool(memories or answers))
    with evaluating(model):
        found = attention_roles(model, batch, targets=targets, seed=seed)
        found += circuit_roles(model, batch.inputs, batch.mask, seed=seed)
        if memories or answers:
            reader = Reader(model, batch, seed=seed)
            found += memory_roles(reader, memories)
            found += round_roles(reader, memories)
            found += readout_roles(reader, answers or {})
    return _named(decide(found, level=level))


def _check(model: Any, rows: int, latents: bool) -> None:
    least = FOLDS if latents else 2
    if rows < least:
        why = "probes are fitted on some and judged on others" if latents else "they are compared"
        raise ArgumentError(f"batch must have at least {least} rows ({why}), got {rows}: add rows")
    kind = type(model).__name__
    if not hasattr(model, "hook_dict"):
        raise ArgumentError(
            f"model must have hooks, got a plain {kind}: wrap it first (interp.models.wrap; see "
            "docs/howto-wrap)"
        )
    if latents and not all(hasattr(model, name) for name in _WEIGHTS):
        raise ArgumentError(
            f"memories and answers must be left out for {kind}: their roles are read off W_O and "
            "the unembedding, which a wrapped module does not name"
        )
    layers = sorted({part.layer for part in components(model) if part.kind == "head"})
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    lacking = [name for name in patterns if name not in model.hook_dict]
    if lacking:
        raise HookError(
            f"roles need the attention patterns, and {kind} has no hook {', '.join(lacking)}: wrap "
            "the place where they are; a fused attention computes none (see docs/howto-wrap)"
        )


def _named(roles: pd.DataFrame) -> pd.DataFrame:
    """Without the loose names of heads that have a stricter one: a head that compares tokens is not
    ``dense``, one that has its part in a memory's kernel neither that nor ``local``."""
    where = ["component", "layer", "head"]
    places = pd.MultiIndex.from_frame(roles[where])
    loose = pd.Series(False, index=roles.index)
    for role, strict in _LOOSE.items():
        named = roles.loc[roles["role"].isin(strict), where]
        loose |= (roles["role"] == role) & places.isin(pd.MultiIndex.from_frame(named))
    return roles[~loose].reset_index(drop=True)


def candidates(store: ActivationStore, *, level: float = 0.01) -> pd.DataFrame:
    """Attention roles from a store's patterns: behaviour alone, so no more than candidates.

    Raises:
        HookError: if no layer's ``attn.hook_pattern`` is stored.
    """
    return decide(stored_roles(store), level=level)


def memories_of(task: Any) -> tuple[Memory, ...]:
    """What a task says is fetched; none for a task that does not speak of memories."""
    if isinstance(task, FixedMemory | RealMemory):
        names = task.arguments[1:]
        return tuple(Memory(name, lag) for name, lag in zip(names, task.lags, strict=True))
    if isinstance(task, AdaptiveMemory):
        rounds = [min(i, task.rounds + 1) for i in range(1, task.memories + 1)]
        return tuple(
            Memory(name, f"t_{i}", r)
            for i, (name, r) in enumerate(zip(task.arguments[1:], rounds, strict=True), start=1)
        )
    if isinstance(task, KernelMemory):
        lags = np.arange(task.length, dtype=np.float64)
        texts = zip(task.arguments, task.kernels, strict=True)
        return tuple(Memory(name, Kernel.parse(text).values(lags)) for name, text in texts)
    return ()


def answers_of(task: Any) -> dict[str, tuple[str, ...]]:
    """What a task says is computed, and from what: the answer, the locations of memories, the
    source of what is copied."""
    if isinstance(task, TemplateTask):
        return {"source" if task.symbolic else "label": ()}
    if not isinstance(task, FixedMemory | RealMemory | AdaptiveMemory | KernelMemory):
        return {}
    locations = [str(m.location) for m in memories_of(task) if isinstance(m.location, str)]
    return {"f": task.arguments} | dict.fromkeys(locations, ())
