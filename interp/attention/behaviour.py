"""Whether a head copies the tokens that it attends to, and whether it attends to fixed positions.

**Copying.** The output of head h at i, read through the final norm at its actual scale and the
unembedding, gives logits ℓ_h(i, ·) (direct effect; no later layer). With ℓ̄ their mean over the
vocabulary,

    copying_h = mean over rows and queries of Σ_j p_h(i, j) · (ℓ_h(i, x_j) − ℓ̄_h(i))

in logits: by how much the attended tokens become likelier, weighted by attention; negative is
anti-copying. Null: the row's attention and outputs are paired with another row's tokens, with the
exact moments of Hoeffding's combinatorial statistic over permutations of a batch's rows.

**Position.** For two rows with different tokens,

    positional_h = mean over queries of Σ_j p(i, j) p′(i, j) / (‖p(i)‖ ‖p′(i)‖)

is 1 if attention does not depend on the row's content. Queries that may attend to one key only are
left out. Null: one row's weights are permuted over the keys that the query may attend to
(:mod:`interp.store.rows`), with exact mean and variance. Even attention has score 1 and
effect 0: it does not depend on the content, but prefers no position either.

Intervals are a Poisson bootstrap over rows, or pairs of rows (:mod:`interp.stats.bootstrap`). For a
store that keeps some heads the tables hold those.

Neither score shows that the model relies on the head: ablate it for that. A direct effect leaves
out everything that later layers make of it, and attention sinks look positional by design.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.attribution.unembedding import SCALE, post_norm, post_scale, reaching, unembedding
from interp.errors import HookError, Problems
from interp.hooks.site import Site
from interp.stats.bootstrap import RESAMPLES, RowCounts, RowMeans
from interp.stats.head_table import head_table, score_row
from interp.stats.p_values import Tail
from interp.store.rows import Rows, attention_shares, mask_from_patterns

__all__ = ["SCALE", "Alike", "Copying", "copying_table", "positional_table"]

_PATTERN = "attn.hook_pattern"


def copying_table(
    model: Any, batches: Iterable[Rows], *, seed: int = 0, resamples: int = RESAMPLES
) -> pd.DataFrame:
    """Measure how much every head raises the logits of the tokens that it attends to (see the
    module).

    Args:
        model: The model whose ``W_O``, final norm and unembedding are used.
        batches: Rows with patterns, ``hook_z`` and :data:`SCALE`, from
            :func:`interp.store.rows.read_batches`. For a model with ``identity_ov``, whose heads
            write more than z W_O, ``hook_result`` instead of ``hook_z``. A batch of one row is left
            out, because the null needs another row.
        seed, resamples: Seed and number of resamples of the bootstrap.

    Returns:
        A head table with ``low`` and ``high``: metric ``copying``, null ``tokens``; p is two-sided.

    Raises:
        ArgumentError: if no batch has two rows, inputs are not tokens of the unembedding, or
            activations are not finite.
        HookError: if the rows lack a hook.
    """
    found = Copying(model, seed=seed, resamples=resamples)
    for rows in batches:
        found.add(rows)
    return found.table()


def positional_table(
    batches: Iterable[Rows], *, seed: int = 0, resamples: int = RESAMPLES
) -> pd.DataFrame:
    """Measure how similar every head's attention is on different rows (see the module).

    Args:
        batches: Rows with patterns; rows of a batch are compared in pairs, an odd one is left out.
        seed, resamples: Seed and number of resamples of the bootstrap.

    Returns:
        A head table with ``low`` and ``high``: metric ``positional``, null ``positions``.

    Raises:
        ArgumentError: if no batch has two rows, or attention is not finite.
        HookError: if the rows have no patterns.
    """
    found = Alike(seed=seed, resamples=resamples)
    for rows in batches:
        found.add(rows)
    return found.table()


class Copying:
    """The running sums behind :func:`copying_table`, added up batch by batch.

    Args:
        model: The model whose ``W_O``, final norm and unembedding are used.
        seed, resamples: Seed and number of resamples of the bootstrap.
    """

    def __init__(self, model: Any, *, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self._model, self._sums = model, _Sums("copying", "tokens", seed, resamples)
        self._unembedding = unembedding(model).float().cpu()
        self._output = model.W_O.detach().float().cpu()

    def add(self, rows: Rows) -> None:
        """Add a batch; a batch of one row is left out, because the null needs another row."""
        model, unembedding = self._model, self._unembedding
        _check_tokens(rows, len(unembedding.T))
        if len(rows) < 2:
            return
        embedded = unembedding.T[rows.inputs]  # [row, key, d_model]
        counts = self._sums.counts.draw(len(rows))
        for layer, share in _shares(rows):
            named = _head_numbers(rows, share)
            real = [i for i, head in enumerate(named) if head < _heads(model, layer)]
            heads = [named[i] for i in real]
            hook, written = _hook_and_write(model, rows, layer)
            after = self._output[layer][heads] if hook.endswith("hook_z") else None
            if after is not None and post_norm(model, layer) is not None:
                after = reaching(model, layer, after, torch.ones_like(after[..., :1]))
            paired = _paired_logits(share[:, real].float(), written[:, :, real], after, embedded)
            self._sums.add(layer, heads, *_permutation_moments(paired), counts)

    def table(self) -> pd.DataFrame:
        """Return the table that :func:`copying_table` describes."""
        return self._sums.table("two-sided")


class Alike:
    """The running sums behind :func:`positional_table`, added up batch by batch.

    Args:
        seed, resamples: Seed and number of resamples of the bootstrap.
    """

    def __init__(self, *, seed: int = 0, resamples: int = RESAMPLES) -> None:
        self._sums = _Sums("positional", "positions", seed, resamples)

    def add(self, rows: Rows) -> None:
        """Add a batch, whose rows are compared in pairs."""
        pairs = len(rows) // 2
        counts = self._sums.counts.draw(pairs)
        for layer, share in _shares(rows) if pairs else ():
            seen = _visible_keys(rows).sum(-1)
            one, two = share[: 2 * pairs : 2], share[1 : 2 * pairs : 2]
            score, mean, variance = _alike(one, two, seen)
            heads = _head_numbers(rows, share)
            self._sums.add(layer, heads, score, mean, variance.sum(0), counts)

    def table(self) -> pd.DataFrame:
        """Return the table that :func:`positional_table` describes."""
        return self._sums.table("greater")


class _Sums:
    """Running means of a score for the heads of every layer."""

    def __init__(self, metric: str, null: str, seed: int, resamples: int) -> None:
        self._metric, self._null = metric, null
        self._found: dict[int, tuple[Sequence[int], RowMeans]] = {}
        self.counts = RowCounts(seed, resamples)

    def add(
        self,
        layer: int,
        heads: Sequence[int],
        score: Float[Tensor, "row head"],
        mean: Float[Tensor, "row head"],
        variance: Float[Tensor, " head"],
        counts: Float[Tensor, "resample row"],
    ) -> None:
        empty = heads, RowMeans((len(heads),), self.counts.resamples)
        one = torch.ones(len(score), 1, dtype=torch.float64)
        self._found.setdefault(layer, empty)[1].add(score, one, counts, mean, variance)

    def table(self, tail: Tail) -> pd.DataFrame:
        problems, advice = Problems(f"{self._metric}_table"), "rows are compared"
        rule = "must hold a batch of at least 2 rows"
        problems.need(bool(self._found), "batches", rule, "fewer", advice)
        problems.raise_if_any()
        return head_table(self._lines(tail))

    def _lines(self, tail: Tail) -> Iterator[dict[str, Any]]:
        for layer, (heads, sums) in self._found.items():
            scores, (low, high) = sums.scores().tolist(), sums.intervals().tolist()
            for place, head in enumerate(heads):
                null = sums.null((place,), self._null, tail)
                yield score_row(
                    self._metric,
                    scores[place],
                    null,
                    component="head",
                    layer=layer,
                    head=head,
                    interval=(low[place], high[place]),
                )


def _hook_and_write(
    model: Any, rows: Rows, layer: int
) -> tuple[str, Float[Tensor, "row query head d"]]:
    """Return the hook at which heads' outputs are read (before or after W_O) and its values divided
    by the norm's scale."""
    names = [Site(layer, kind).name for kind in ("z", "result")]
    spec = getattr(model, "spec", None)
    names = names[1:] if spec is not None and spec.identity_ov else names
    name = next((name for name in names if name in rows.activations), "")
    scales = {SCALE} if post_norm(model, layer) is None else {SCALE, post_scale(layer)}
    if not name or scales - {*rows.activations}:
        lacking = [*([] if name else [" or ".join(names)]), *sorted(scales - {*rows.activations})]
        raise HookError(f"copying_table: rows lack {', '.join(lacking)}: read, or extract, it too")
    values = rows.activations[name].float()
    _need_finite(name, values)
    for hook in sorted(scales):
        scale = rows.activations[hook].float()
        _need_finite(hook, scale)
        values = values / scale[..., None]
    return name, values


def _paired_logits(
    share: Float[Tensor, "row head query key"],
    written: Float[Tensor, "row query head d"],
    output: Float[Tensor, "head d d_model"] | None,
    embedded: Float[Tensor, "row key d_model"],
) -> Float[Tensor, "row content head"]:
    """Return the logits that one row's attention and outputs give another row's tokens, for all
    pairs."""
    gathered = torch.einsum("rhqk,rqhd->rkhd", share, written) / share.shape[2]
    if output is None:
        return torch.einsum("rkhm,skm->rsh", gathered, embedded).double()
    by_key = torch.einsum("skm,hdm->skhd", embedded, output)
    return torch.einsum("rkhd,skhd->rsh", gathered, by_key).double()


def _permutation_moments(
    paired: Float[Tensor, "row content head"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's score, and its mean and variance when rows are paired with tokens at
    random.

    Row r's score is paired[r, r]. Its mean under random pairings is half from pairs in which r
    gives the tokens, half from pairs in which it gives the outputs; the variance is that of the sum
    over rows.
    """
    n = len(paired)
    score = torch.diagonal(paired, dim1=0, dim2=1).T
    by_row, by_content = paired.mean(1), paired.mean(0)
    centred = paired - by_row[:, None] - by_content[None] + paired.mean((0, 1))
    return score, (by_row + by_content) / 2, centred.square().sum((0, 1)) / (n - 1)


def _alike(
    one: Float[Tensor, "pair head query key"],
    two: Float[Tensor, "pair head query key"],
    seen: Float[Tensor, " query"] | Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cosine of two rows' attention, with its mean and variance under permuted keys,
    ``[pair, head]``.

    A query that may attend to one key only is left out.
    """
    free = seen > 1
    one, two, n = one[:, :, free], two[:, :, free], seen[free].to(one.dtype)
    squares = one.square().sum(-1), two.square().sum(-1)
    size = (squares[0] * squares[1]).sqrt().clamp_min(torch.finfo(one.dtype).tiny)
    score = ((one * two).sum(-1) / size).mean(-1)
    spread = [(s - 1 / n).clamp_min(0) for s in squares]
    variance = (spread[0] * spread[1] / (n - 1) / size**2).sum(-1) / len(n) ** 2
    return score, (1 / n / size).mean(-1), variance


def _shares(rows: Rows) -> Iterator[tuple[int, Float[Tensor, "row head query key"]]]:
    """Yield each layer with its attention patterns, normalised so that a query's weights sum to
    one."""
    patterns, seen = _patterns(rows), _visible_keys(rows)
    for layer, pattern in patterns.items():
        yield layer, attention_shares(layer, pattern, seen, _head_numbers(rows, pattern))


def _visible_keys(rows: Rows) -> Bool[Tensor, "query key"]:
    patterns = list(_patterns(rows).values())
    return (rows.attention_mask or mask_from_patterns(patterns)).keys(patterns[0].shape[-1])


def _patterns(rows: Rows) -> dict[int, Float[Tensor, "row head query key"]]:
    found = {Site.of(h).layer: v for h, v in rows.activations.items() if h.endswith(_PATTERN)}
    if not found:
        raise HookError(f"rows have no hook blocks.*.{_PATTERN}: read, or extract, it too")
    return found


def _head_numbers(rows: Rows, pattern: Float[Tensor, "row head query key"]) -> tuple[int, ...]:
    """Return the numbers of the heads in the pattern's head axis."""
    return tuple(range(pattern.shape[1])) if rows.heads is None else rows.heads


def _heads(model: Any, layer: int) -> int:
    spec = getattr(model, "spec", None)
    return int(model.cfg.n_heads if spec is None else spec.heads[layer])


def _check_tokens(rows: Rows, vocabulary: int) -> None:
    problems, real = Problems("copying_table"), rows.inputs.is_floating_point()
    known = real or not len(rows) or int(rows.inputs.max()) < vocabulary
    problems.need(not real, "inputs", "must be tokens", str(rows.inputs.dtype), "use a token task")
    rule = f"must be tokens below {vocabulary}, which the unembedding has"
    got = "" if known else int(rows.inputs.max())
    problems.need(known, "inputs", rule, got, "copying is of tokens that the model can say")
    problems.raise_if_any()


def _need_finite(hook: str, values: Tensor) -> None:
    problems, broken = Problems("copying_table"), ~values.isfinite()
    advice = "the model's weights or inputs are damaged"
    got = f"{int(broken.sum())} that are not"
    problems.need(not bool(broken.any()), hook, "must be finite", got, advice)
    problems.raise_if_any()
