"""What every head does on some rows, token by token, as tables from which a page is drawn.

    shown-rows     kind, row, position: the token as text, and whether it is scored
    shown-heads    kind, layer, head, part: numbers in one byte each, ``low + code · step``
        pattern      attention of each query to each key, as the model computes it; for a causal
                     model only the keys up to the query, query after query
        written      ‖v_j W_O‖, the size of what would be read from key j: a head may attend to a
                     token whose value is small
        effect       rise of the loss at each position when the head is replaced by its mean over
                     rows (by zero if there is one row only): in nats, or as a share of the
                     target's variance
    shown-scores   kind, layer, head, keys, row: the share of attention on a key set, and the mean
                   rise (``effect``)
    shown-lags     kind, layer, head, lag: the mean share of attention so many positions back
    raised         layer, head, token: the tokens whose logits the head raises and lowers when it
                   attends to that token, from weights alone: e(t) W_V W_O R

A page of 144 heads on 60 rows of 64 tokens holds 18 million numbers, too many for four bytes each.
``error`` is the largest |number − what its code stands for|, as found. Nothing is computed from
codes: all measurements use the numbers as the model gave them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from interp.attention.attention_to_keys import masses_by_row
from interp.attention.by_lag import LagMass
from interp.attention.key_sets import positional_key_sets, token_key_sets
from interp.attribution.unembedding import unembedding
from interp.interventions.ablation_effects import loss_unit
from interp.run import Mean, Run, Site, Zero, output_site
from interp.store.rows import Rows, attention_shares, layer_hooks, mask_from_patterns, read_batches
from interp.tasks.base import Batch
from interp.weights.head_weights import HeadWeights

KEYS = ("previous", "own", "first", "same", "after_same")
"""Key sets whose attention share the rows of the viewer can be ordered by."""
_LAGS, _BATCH, _CODES = 32, 8, 255
_SLACK = 1e-6  # how far above one a share may lie by rounding
_TOKENS, _EACH = 48, 5

Place = tuple[int, int]
Words = tuple[tuple[str, ...], ...]
Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Shown:
    """Rows of one kind and one length that are shown on a page.

    Attributes:
        kind: ``given``, ``repeated``, ``shuffled``, ``text``, ``rows``, ``store`` or ``prompt``.
        about: What the rows are, in words.
        batch: The rows.
        texts: Each row's tokens as text.
    """

    kind: str
    about: str
    batch: Batch
    texts: Words


def quantise(
    values: NDArray[np.floating], *, shares: bool = False
) -> tuple[NDArray[np.uint8], float, float, float]:
    """Encode numbers in one byte each.

    Args:
        values: Finite numbers, in an array of any shape.
        shares: Whether they are shares of one. If all lie between 0 and 1, codes then stand for 0
            to 1, so that heads can be compared, and not for the values' own range.

    Returns:
        Codes of the same shape; the number that code 0 stands for; the step between codes; and the
        largest error, which is at most half a step, up to rounding.
    """
    exact: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    low, high = (float(exact.min()), float(exact.max())) if exact.size else (0.0, 0.0)
    if shares and low >= 0 and high <= 1 + _SLACK:
        low, high = 0.0, 1.0
    step = (high - low) / _CODES
    codes = np.clip(np.rint((exact - low) / (step or 1.0)), 0, _CODES).astype(np.uint8)
    return codes, low, step, float(np.abs(low + codes * step - exact).max(initial=0.0))


def shown_tables(source: Any, shown: Sequence[Shown], model: Any = None) -> dict[str, pd.DataFrame]:
    """Make the tables of the attention and the value sizes of every head on some rows.

    Args:
        source: A hooked model; or a store whose first rows these are, with their attention
            patterns.
        shown: The rows, by kind.
        model: The model whose W_O gives the sizes of values; None to leave them out.

    Returns:
        ``shown-rows``, ``shown-heads``, ``shown-scores`` and ``shown-lags``.

    Raises:
        ArgumentError: if attention is not finite.
        HookError: if there is no hook at the attention patterns.
    """
    rows, heads, scores, lags = list[pd.DataFrame](), Lines(), Lines(), Lines()
    for number, some in enumerate(shown):
        rows.append(_rows_of(some).assign(group=number))
        for name, lines in _on(source, some, model):
            {"heads": heads, "scores": scores, "lags": lags}[name] += [
                {"group": number, **line} for line in lines
            ]
    return {
        "shown-rows": pd.concat(rows, ignore_index=True),
        "shown-heads": pd.DataFrame(heads),
        "shown-scores": pd.DataFrame(scores),
        "shown-lags": pd.DataFrame(lags),
    }


def _rows_of(some: Shown) -> pd.DataFrame:
    n = len(some.batch), some.batch.inputs.shape[1]
    return pd.DataFrame(
        {
            "kind": some.kind,
            "row": np.repeat(np.arange(n[0]), n[1]),
            "position": np.tile(np.arange(n[1]), n[0]),
            "token": [text for row in some.texts for text in row],
            "scored": some.batch.mask.numpy().ravel(),
        }
    )


def _on(source: Any, some: Shown, model: Any) -> Iterator[tuple[str, Lines]]:
    """Yield lines of the tables for rows of one kind, layer by layer, each with the name of its
    table."""
    live = source is model
    hooks = layer_hooks(source, "attn.hook_pattern")
    layers = [Site.of(hook).layer for hook in hooks]
    outputs = _outputs(model, layers) if live else {}
    hooks += [Site(layer, "v").name for layer in outputs]
    batches = read_batches(source, some.batch if live else None, hooks, batch=_BATCH)
    whole = list(islice(batches, -(-len(some.batch) // _BATCH)))
    first = {layer: whole[0].activations[Site(layer, "pattern").name] for layer in layers}
    mask = whole[0].attention_mask or mask_from_patterns(first.values())
    n = some.batch.inputs.shape[1]
    at = tuple(range(0 if mask.causal else 1 - min(_LAGS, n), min(_LAGS, n)))
    keys = _keys(some.batch.inputs, causal=mask.causal)
    for layer in layers:
        pattern = _join_activations(whole, Site(layer, "pattern").name)[: len(some.batch)]
        heads = tuple(range(pattern.shape[1])) if whole[0].heads is None else whole[0].heads
        visible = mask.keys(n)
        share = attention_shares(layer, pattern, visible, heads)
        counted = torch.ones(len(pattern), n, dtype=torch.bool)
        by_row = {name: masses_by_row(share, k, counted, visible) for name, k in keys.items()}
        by_lag = LagMass(at, resamples=0, attention_mask=mask)
        by_lag.add({layer: pattern}, counted, heads)
        mean, written = by_lag.by_lag(layer), None
        if layer in outputs:
            values = _join_activations(whole, Site(layer, "v").name)
            written = torch.einsum("rkhd,hdm->rkhm", values, outputs[layer]).norm(dim=-1)
        for i, head in enumerate(heads):
            place = {"kind": some.kind, "layer": layer, "head": head}
            codes = _line(place, "pattern", pattern[:, i].numpy(), causal=mask.causal)
            yield "heads", [codes]
            if written is not None and bool(written[:, :, i].isfinite().all()):
                yield "heads", [_line(place, "written", written[:, :, i].numpy())]
            yield (
                "scores",
                [
                    {**place, "keys": name, "row": row, "score": float(score)}
                    for name, of in by_row.items()
                    for row, score in enumerate(of[:, i])
                ],
            )
            yield (
                "lags",
                [{**place, "lag": j, "share": float(s)} for j, s in zip(at, mean[i], strict=True)],
            )


def _join_activations(whole: Sequence[Rows], hook: str) -> Tensor:
    return torch.cat([rows.activations[hook].float() for rows in whole])


def _line(
    place: Mapping[str, Any], part: str, values: NDArray[np.floating], *, causal: bool = False
) -> dict[str, Any]:
    codes, low, step, error = quantise(values, shares=part == "pattern")
    if causal:
        codes = np.ascontiguousarray(codes[:, *np.tril_indices(codes.shape[-1])])
    text = base64.b64encode(codes.tobytes()).decode()
    return {**place, "part": part, "low": low, "step": step, "error": error, "codes": text}


def _keys(inputs: Tensor, *, causal: bool) -> dict[str, Tensor]:
    """Return key set → its mask, ``[row, query, key]``."""
    found = positional_key_sets(len(inputs), inputs.shape[1], 1, causal=causal)
    if inputs.ndim == 2:
        found |= token_key_sets(inputs, causal=causal)
    return {name: found[name] for name in KEYS if name in found}


def _outputs(model: Any, layers: Sequence[int]) -> dict[int, Float[Tensor, "head d_head d_model"]]:
    """Return layer → W_O.

    Empty for models whose values do not have its shape (shared key-value heads, or layers with
    different numbers of heads), or whose heads write more than v W_O.
    """
    spec, known = getattr(model, "spec", None), getattr(model, "hook_dict", {})
    if not hasattr(model, "W_O") or (spec is not None and spec.identity_ov):
        return {}
    heads = [model.cfg.n_heads] * len(layers) if spec is None else spec.heads
    shared = getattr(model.cfg, "n_key_value_heads", None) not in (None, model.cfg.n_heads)
    if shared or len(set(heads)) > 1:
        return {}
    wide = model.W_O.detach().float().cpu()
    return {layer: wide[layer] for layer in layers if Site(layer, "v").name in known}


@torch.no_grad()
def effect_lines(
    run: Run, some: Shown, group: int, heads: Sequence[Place]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure the loss rise without each head, position by position, as lines of ``shown-heads``
    and of ``shown-scores``.

    Args:
        run: The model on rows of this kind, the first of which are shown; the means are over all.
        some: The rows that are shown.
        group: Their number among the kinds.
        heads: The heads, ablated one at a time.
    """
    rows, made = range(len(some.batch)), Mean if len(run) > 1 else Zero
    unit, parts, scores = loss_unit(run.batch), Lines(), Lines()
    for layer in sorted({layer for layer, _ in heads}):
        here = [place for place in heads if place[0] == layer]
        edits = [made(output_site(run.model, *place)) for place in here]
        for (_, head), rise in zip(here, run.rises(edits, rows=rows), strict=True):
            place = {"group": group, "kind": some.kind, "layer": layer, "head": head}
            if not bool(rise.isfinite().all()):  # overflown: nothing to be drawn
                continue
            parts.append(_line(place, "effect", (rise / unit).numpy()))
            by_row = (run.by_row(rise, rows) / unit).tolist()
            scores += [
                {**place, "keys": "effect", "row": i, "score": s} for i, s in enumerate(by_row)
            ]
    return pd.DataFrame(parts), pd.DataFrame(scores)


@torch.no_grad()
def raised_tokens(
    model: Any, factors: HeadWeights, shown: Sequence[Shown], word: Any
) -> pd.DataFrame:
    """Make the table ``raised``: for the most frequent tokens, which logits each head raises and
    lowers when it attends to them.

    The logits are e(t) W_V W_O R. e(t) is the token's embedding with the gain of the norm before
    attention, R the unembedding with the final norm's gain, centred over the vocabulary. No norm's
    scale is divided by, so sizes can be compared only within a head. After layer 0 a key contains
    more than its token's embedding.

    Args:
        model: A model with TransformerLens' names for its weights; others give an empty table.
        factors: The weights of its heads.
        shown: The rows whose tokens are used.
        word: A function from a token's id to its text.
    """
    flat = [some.batch.inputs.flatten() for some in shown if some.batch.inputs.ndim == 2]
    named = all(hasattr(model, name) for name in ("W_E", "W_U", "ln_final"))
    if not named or not flat or any(part.is_floating_point() for part in flat):
        return pd.DataFrame()
    ids, counts = torch.cat(flat).unique(return_counts=True)
    tokens = ids[counts.argsort(descending=True, stable=True)[:_TOKENS]].tolist()
    embedded, readout = model.W_E.detach().float().cpu()[tokens], unembedding(model).float().cpu()
    kept, lines = min(_EACH, readout.shape[1]), Lines()
    for layer in factors:
        circuit = layer.circuit("OV+bI" if "OV+bI" in layer.circuits else "OV", fold_norm=True)
        for head in range(circuit.n_heads):
            left, right = circuit.pair(head)
            written = embedded @ left.float() @ right.float().mT
            logits = (written + circuit.identity_scalar(head) * embedded) @ readout
            for way, largest in (("up", True), ("down", False)):
                sizes, places = logits.topk(kept, dim=1, largest=largest)
                lines += [
                    {
                        "layer": layer.index,
                        "head": head,
                        "token": word(token),
                        "way": way,
                        "rank": k,
                        "raised": word(place),
                        "logit": size,
                    }
                    for token, many, by in zip(tokens, places.tolist(), sizes.tolist(), strict=True)
                    for k, (place, size) in enumerate(zip(many, by, strict=True))
                ]
    return pd.DataFrame(lines)
