"""Gather the evidence for a model's roles: its rows, residual-stream sites, and attention mask.

    evidence_of(model, rows, profile) → Evidence

All checks of the model and the rows are made here, before anything is measured. The rows are those
that the profile requires: one batch of a task, or repeated tokens, by kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from interp.errors import ArgumentError, HookError, refuse_unless
from interp.hooks.capture import model_device
from interp.hooks.limits import need_hooks
from interp.hooks.site import Site
from interp.hooks.transformer_lens_adapter import vocabulary_of
from interp.interventions.components import Component, components, stream_after
from interp.store.rows import AttentionMask, attention_mask_of, mask_from_patterns
from interp.tasks.base import Batch, Memory
from probes.roles.evidence import Evidence
from probes.roles.profile import Profile
from probes.roles.reader import FOLDS, check_named_latents
from probes.roles.views import language_views, positions_scored, task_views

_FEW = 4
"""Number of rows that are run to find out which keys a query may attend to."""

_WEIGHTS = ("blocks", "ln_final", "unembed")

Named = Mapping[str, Batch]
"""Kind of rows (``repeated``, ``shuffled`` and others) → the rows, for the profile ``language``."""


def evidence_of(
    model: Any,
    rows: Batch | Named,
    profile: Profile,
    *,
    latents: bool = False,
    memories: Sequence[Memory] = (),
    answers: Mapping[str, Sequence[str]] | None = None,
    targets: bool = True,
    seed: int = 0,
    exhaustive: bool = False,
) -> Evidence:
    """Prepare the evidence for a model on a profile's rows.

    The model is run only if its spec does not give the attention mask, on four rows. With a very
    large vocabulary losses are measured only at some positions of each row
    (:func:`probes.roles.views.positions_scored`); attention is read at all positions.

    Args:
        model, rows, profile, targets, seed: The arguments of :func:`probes.roles.find.find_roles`.
        latents: Whether the residual stream will be read by probes.
        memories, answers: What a task says is fetched and computed; only their names are checked.
        exhaustive: Whether to run every edit on all rows.

    Raises:
        ArgumentError, HookError: as :func:`probes.roles.find.find_roles`, before anything is
            measured.
    """
    need_hooks(model)
    rule, advice = "must be a Batch, token ids [row, pos], or a Batch by kind", "see pl.next_tokens"
    refuse_unless(isinstance(rows, Batch | Mapping), "rows", rule, rows, advice)
    first = rows if isinstance(rows, Batch) else next(iter(rows.values()), None)
    _check(model, 0 if first is None else len(first), latents, profile)
    if first is not None:
        check_named_latents(first, memories, answers or {})
    parts = components(model)
    headless = all(part.kind != "head" for part in parts)
    rule, advice = "must have attention heads for profile 'language'", "take profile 'task'"
    refuse_unless(not headless or profile.unit == "variance", "model", rule, "no heads", advice)
    sites = [Site(0, "resid_pre").name, *(hook for _, hook in stream_after(model))]
    sites += [hook.replace("resid_post", "mlp_out") for hook in sites if "resid_post" in hook]
    hooks = _pattern_hooks(model, parts)
    mask = AttentionMask() if first is None else _mask_of(model, first, hooks)
    if profile.unit == "variance":
        if not isinstance(rows, Batch):
            raise ArgumentError("rows must be one batch for profile 'task', got several: give one")
        views = task_views(rows, causal=mask.causal, seed=seed)
    else:
        size = vocabulary_of(model) or 0
        views = {
            kind: replace(
                view, batch=replace(view.batch, mask=positions_scored(view.batch.mask, size))
            )
            for kind, view in language_views(rows, seed=seed).items()
        }
    return Evidence(
        model,
        views,
        profile,
        targets=targets,
        sites=sites if latents else [],
        mask=mask,
        seed=seed,
        exhaustive=exhaustive,
    )


def _mask_of(model: Any, rows: Batch, hooks: Sequence[str]) -> AttentionMask:
    """Return which keys a query may attend to, from the model's spec or else from its attention
    patterns on the first rows."""
    told = attention_mask_of(model)
    if told is not None:
        return told
    _, cache = model.run_with_cache(rows[:_FEW].inputs.to(model_device(model)), names_filter=hooks)
    return mask_from_patterns(cache[hook].cpu() for hook in hooks)


def _check(model: Any, rows: int, latents: bool, profile: Profile) -> None:
    least = FOLDS if latents else 2
    if rows < least:
        why = "probes are fitted on some and judged on others" if latents else "they are compared"
        raise ArgumentError(f"rows must be at least {least} rows ({why}), got {rows}: add rows")
    kind = type(model).__name__
    if latents and profile.unit != "variance":
        raise ArgumentError("memories and answers must be left out for profile 'language'")
    if latents and not all(hasattr(model, name) for name in _WEIGHTS):
        raise ArgumentError(
            f"memories and answers must be left out for {kind}: their roles are read off W_O and "
            "the unembedding, which a wrapped module does not name"
        )


def _pattern_hooks(model: Any, parts: Sequence[Component]) -> list[str]:
    """Return the names of the attention-pattern hooks of all layers that have heads.

    Raises:
        HookError: if the model lacks one of them.
    """
    layers = sorted({part.layer for part in parts if part.kind == "head"})
    patterns = [Site(layer, "pattern").name for layer in layers]
    lacking = [name for name in patterns if name not in model.hook_dict]
    if lacking:
        raise HookError(
            f"roles need the attention patterns, and {type(model).__name__} has no hook "
            f"{', '.join(lacking)}: wrap the place where they are; a fused attention computes none "
            "(see docs/howto-wrap)"
        )
    return patterns
