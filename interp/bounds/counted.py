"""Bounds over all strings of two letters, for two layers of which the first depends on counts only.

Without positions, a first layer distinguishes earlier letters only by how many there are of each.
So its output at a position depends on three numbers: the a's and b's so far, and the last letter. A
string is then a *path* through the points (a's, b's, letter), and what a head of the second layer
fetches at its end is, along any direction d,

    Σ_p w(p) ⟨d, v(p)⟩ / Σ_p w(p),     p over the points of the path and BOS,  w = e^{score}

Its least value is the least λ for which some path has Σ_p w (⟨d, v⟩ − λ) ≤ 0, and that sum is least
on a shortest path. So the range along every direction, over all strings with the same end and the
same number of blocks, is found exactly, however many strings there are. Directions are the
principal ones of the values, so most ranges are very small. The box of all ranges is propagated
through the rest of the model as affine forms, and cut in halves if the bound does not decide the
answer.

    cell    the a's and b's of a string a⁺b⁺a⁺ …, and its number of blocks

A box ignores that its ranges belong to the same strings: if the possible fetched vectors have many
directions, the box is much larger than their set. The bounds are for the model as a real function
of its weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int

from interp.bounds.affine import Affine, Arithmetic, add, linear, share
from interp.bounds.attention import linear_heads, score_forms, weights
from interp.bounds.network import (
    after_attention,
    after_ffn,
    apply_norm,
    embed_inputs,
    margins,
    unmet,
)
from interp.bounds.two_layers import LEAST_WEIGHT, Watch, finite, main_directions

Array = Float64[np.ndarray, "..."]

_STEPS = 12
"""Largest number of Newton steps towards the range of what a head fetches. Stopping earlier gives a
wider range that is still valid."""

_BOXES = 2**8
"""Largest number of boxes that a cell is cut into before the proof of this cell is given up."""

_FEW = 256
"""Number of boxes that are bounded in one pass. It bounds memory; the result does not depend on
it."""


def not_counted(model: Any) -> str:
    """Return why a model is not of this kind; empty if it is."""
    spec = model.spec
    needed = {
        "two layers": spec.n_layers == 2,
        "heads in both": all(spec.heads),
        "no positions": spec.positions == "none" and spec.lag_bias == "none",
        "dot products for scores": spec.score == "dot",
        "no b·I": not spec.identity_ov,
        "a softmax": spec.normalizer == "softmax",
        "causal attention that sees itself": spec.causal and not spec.mask_self,
        "a·I that sees itself": not (spec.identity_qk and spec.identity_mask_self),
        "token inputs": spec.input == "tokens",
        "two outputs or more": spec.d_out > 1,
        "weights that are finite numbers": finite(model),
    }
    return unmet("counts in two layers need", needed)


@np.errstate(all="ignore")
def share_right(
    model: Any,
    ids: Int[np.ndarray, " 3"],
    cells: Int[np.ndarray, "cell 3"],
    answers: Int[np.ndarray, " cell"],
    counts: Sequence[int],
    ar: Arithmetic,
    watch: Watch = iter,
    least: float = 0.0,
) -> float:
    """Return the share of strings that are in cells of which every string is proved to be answered
    rightly, rounded down.

    Args:
        model: A model for which :func:`not_counted` is empty.
        ids: The token ids of BOS, a and b.
        cells: The numbers of a's, of b's and of blocks, ``[cell, 3]``; the first block is of a's.
        answers: The right output of each cell at the last position.
        counts: The number of strings in each cell.
        ar: The arithmetic, which counts the multiplications.
        watch: A wrapper of the loop over cells, such as a progress bar.
        least: The share that is worth proving: once so many strings are not proved that the share
            cannot exceed it, the remaining cells are skipped.
    """
    points, right, total = _Points(model, ids, cells, ar), 0, sum(counts)
    each = zip(cells.tolist(), answers.tolist(), counts, strict=True)
    open_ = total
    for (a, b, blocks), answer, count in watch(sorted(each, key=lambda cell: -cell[2])):
        if open_ <= least * total:
            break
        sure = points.sure(a, b, 1 - blocks % 2, points.ranges(a, b, blocks), answer)
        right, open_ = right + count * sure, open_ - count * (not sure)
    return share(right, total)


class _Points:
    """The input of a model's second layer at each point (a's, b's, letter).

    Arrays over points are ``[a's, b's, letter, …]``, letter 0 for a. At points that no string
    reaches they hold BOS's values, which are never used.
    """

    def __init__(
        self,
        model: Any,
        ids: Int[np.ndarray, " 3"],
        cells: Int[np.ndarray, "cell 3"],
        ar: Arithmetic,
    ) -> None:
        self.model, self.block, self.ar = model, model.blocks[1], ar
        self.shape = (int(cells[:, 0].max()) + 1, int(cells[:, 1].max()) + 1, 2)
        longest = int(cells[:, :2].sum(1).max())
        self.entering = self._entering(ids, longest)  # [point, d_model], BOS at (0, 0, 0)
        self.seen = apply_norm(self.block.ln1, self.entering, ar)
        attn = self.block.attn
        values = linear_heads(self.seen, attn.W_V, attn.b_V, ar)
        self.values, self.off = values.centre, float(values.radius.max())
        centred = values.centre - values.centre.mean(0)
        turns = [main_directions(centred[:, h]) for h in range(len(attn.W_V))]
        self.directions = np.stack(turns)  # [head, channel, direction]

    def _entering(self, ids: Int[np.ndarray, " 3"], longest: int) -> Affine:
        """Return the stream after the first layer, computed from one string for each point."""
        wide = weights(self.model.W_U).shape[0]
        centre, radius = np.zeros((*self.shape, wide)), np.zeros((*self.shape, wide))
        for length in range(longest + 1):
            places = [
                (a, length - a, last)
                for a in range(self.shape[0])
                for last in (0, 1)
                if 0 <= length - a < self.shape[1] and (length == 0 or (a, length - a)[last])
            ]
            rows = np.array([_letters(*place) for place in places], dtype=np.int64)
            tokens = np.concatenate((np.full((len(rows), 1), ids[0]), ids[1:][rows]), axis=1)
            x = embed_inputs(self.model, tokens, self.ar)
            block = self.model.blocks[0]
            x = after_ffn(block, after_attention(block, x, self.ar, last_only=True), self.ar)
            at = tuple(np.array(places).T) if length else ...  # BOS stands in for unreached points
            centre[at], radius[at] = x.centre[:, 0], x.deviation[:, 0]
        flat = (centre.reshape(-1, wide), np.zeros((0, radius[..., 0].size, wide)))
        return Affine(*flat, radius.reshape(-1, wide))

    def ranges(self, a: int, b: int, blocks: int) -> tuple[Array, Array]:
        """Return the least and largest of what each head fetches along each direction, ``[head,
        direction]``, over all strings with given numbers of letters and blocks."""
        flat, lags = (
            np.arange(len(self.values)).reshape(self.shape),
            np.zeros((1, len(self.values))),
        )
        query = self.seen[[flat[a, b, 1 - blocks % 2]]].reshape(1, 1, -1)
        keys = self.seen.reshape(1, *self.seen.shape)
        scores = score_forms(self.block.attn, query, keys, lags.astype(np.int64), self.ar)
        own = scores.centre[0, :, 0].reshape(-1, *self.shape)[:, : a + 1, : b + 1]
        reached = _reachable_points(a, b)
        own = np.where(reached, own, -np.inf)
        looks = np.moveaxis(np.exp(own - own.max((1, 2, 3), keepdims=True)), 0, -1)
        along = np.einsum("phc,hcd->phd", self.values, self.directions)
        along = along.reshape(*self.shape, *along.shape[1:])[: a + 1, : b + 1]
        along = np.concatenate((along, -along), -1)  # the largest is a least one, too
        largest = np.abs(along[reached]).max()
        width = self.directions.shape[1]
        off = width * self.off + largest * (8 * float(scores.radius.max()) + 2.0**-40)
        least = self._least(looks, along, reached, blocks) - off
        return least[:, :width], -least[:, width:]

    def _least(
        self, looks: Array, along: Array, reached: Bool[np.ndarray, "..."], blocks: int
    ) -> Array:
        """Return the least ratio over all paths, or a little less, ``[head, direction]``."""
        looks, floor = looks[..., None], along[reached].min(0)
        lowest = looks[reached].min(0) * (looks.shape[0] + looks.shape[1] - 1)
        ratio = floor
        for _ in range(_STEPS):
            above, below = _shortest(looks, along, ratio, blocks)
            self.ar.multiplications += 2 * along.size
            before, ratio = ratio, above / below
            if not (np.abs(ratio - before) > 2.0**-40 * np.abs(ratio)).any():
                break
        above, below = _shortest(looks, along, ratio, blocks)
        if (lowest <= LEAST_WEIGHT).any():
            return np.asarray(floor)
        left = np.minimum(above - ratio * below, 0.0) - below * np.abs(along).max() * 2.0**-40
        return np.asarray(np.maximum(ratio + left / lowest, floor))

    def sure(self, a: int, b: int, last: int, ranges: tuple[Array, Array], answer: int) -> bool:
        """Return whether the answer has the largest logit for everything that heads may fetch in
        the ranges."""
        boxes, done = np.stack(ranges)[:, None], 0  # [end, box, head, direction]
        if not np.isfinite(boxes).all():
            return False
        while boxes.shape[1]:
            ahead = np.concatenate([self._ahead(a, b, last, part, answer) for part in _few(boxes)])
            done += int((ahead > 0).sum())
            boxes = boxes[:, ~(ahead > 0)]
            if done + 2 * boxes.shape[1] > _BOXES:
                return False
            boxes = _halve_boxes(boxes)
        return True

    def _ahead(self, a: int, b: int, last: int, boxes: Array, answer: int) -> Array:
        """Return a lower bound on the answer's lead over all other logits, for each box."""
        attn, count = self.block.attn, boxes.shape[1]
        heads, width, _ = self.directions.shape
        middle, half = boxes.mean(0), (boxes[1] - boxes[0]) / 2 * (1 + 2.0**-40)
        centre = np.einsum("hcd,bhd->bhc", self.directions, middle)
        noise = np.zeros((heads * width, count, heads, width))
        for h in range(heads):
            noise[h * width : (h + 1) * width, :, h] = np.einsum(
                "cd,bd->dbc", self.directions[h], half[:, h]
            )
        # Directions are orthogonal up to rounding, so what they miss of a value is next to nothing.
        size = float(np.abs(self.values).max()) + 1.0
        missed = np.einsum("hcd,hed->hce", self.directions, self.directions) - np.eye(width)
        radius = np.full(centre.shape, size * width * (float(np.abs(missed).max()) + 2.0**-40))
        kept = noise.reshape(len(noise), -1).any(1)
        ar = Arithmetic("real", symbols=int(kept.sum()))
        fetched = Affine(centre, noise[kept], radius).reshape(count, 1, heads * width)
        w_o = weights(attn.W_O)
        out = linear(fetched, w_o.reshape(-1, w_o.shape[-1]), weights(attn.b_O), ar)
        point = np.ravel_multi_index((a, b, last), self.shape)
        x = self.entering[[point]].reshape(1, 1, -1)
        x = add(x, out, ar) if self.block.residual else out
        found = margins(self.model, after_ffn(self.block, x, ar)[:, -1], answer, ar)
        self.ar.multiplications += ar.multiplications
        low, _ = found.bounds()
        return np.asarray(np.nan_to_num(low.min(-1), nan=-np.inf))


def _letters(a: int, b: int, last: int) -> list[int]:
    """Return a string with a given number of a's (0) and b's (1), and a given last letter."""
    return ([1] * b + [0] * a) if last == 0 else ([0] * a + [1] * b)


def _reachable_points(a: int, b: int) -> Bool[np.ndarray, "a b letter"]:
    """Return the points that a string of a⁺b⁺ … can pass, and BOS, which is at (0, 0, 0)."""
    of_a, of_b = np.ogrid[: a + 1, : b + 1]
    ends_in_a = (of_a > 1) | ((of_a == 1) & (of_b == 0))
    found = np.stack((ends_in_a, (of_a > 0) & (of_b > 0)), -1)
    found[0, 0, 0] = True
    return found


def _shortest(looks: Array, along: Array, ratio: Array, blocks: int) -> tuple[Array, Array]:
    """Return Σ w ⟨d, v⟩ and Σ w along the path on which Σ w (⟨d, v⟩ − ratio) is least.

    Args:
        looks: The weights w, ``[a's, b's, letter, head, 1]``.
        along: ⟨d, v⟩, ``[a's, b's, letter, head, direction]``.
        ratio: The ratios, ``[head, direction]``.
        blocks: The number of blocks of the path.
    """
    most_a, most_b = along.shape[0] - 1, along.shape[1] - 1
    terms = looks * along
    size = (blocks + 1, most_a + 1, *ratio.shape)
    above = np.zeros(size)  # by blocks begun and a's so far, all after the same number of letters
    below, cost = np.zeros(size), np.full(size, np.inf)
    above[0, 0], below[0, 0], cost[0, 0] = terms[0, 0, 0], looks[0, 0, 0], 0.0
    for length in range(1, most_a + most_b + 1):
        a = np.arange(max(0, length - most_b), min(most_a, length) + 1)
        after = [np.zeros(size), np.zeros(size), np.full(size, np.inf)]
        for letter in (0, 1):
            to = np.arange(letter + 1, blocks + 1, 2)
            ends = a[a > 0] if letter == 0 else a[a < length]
            begins, at = (to[:, None], ends[None]), (ends, length - ends, letter)
            same, fewer = to[:, None], to[:, None] - 1
            before = ends[None] - (letter == 0)
            first = cost[fewer, before] < cost[same, before]
            step = terms[at] - ratio * looks[at]
            for kept, old, new in zip(
                after, (above, below, cost), (terms[at], looks[at], step), strict=True
            ):
                kept[begins] = np.where(first, old[fewer, before], old[same, before]) + new
        above, below, cost = after
    return above[blocks, most_a], below[blocks, most_a]


def _few(boxes: Array) -> Iterator[Array]:
    for start in range(0, boxes.shape[1], _FEW):
        yield boxes[:, start : start + _FEW]


def _halve_boxes(boxes: Array) -> Array:
    """Cut each box in halves along its longest side."""
    flat = boxes.reshape(*boxes.shape[:2], int(np.prod(boxes.shape[2:])))
    longest, rows = (flat[1] - flat[0]).argmax(-1), np.arange(flat.shape[1])
    lower, upper = flat.copy(), flat.copy()
    middle = flat[:, rows, longest].mean(0)
    lower[1, rows, longest], upper[0, rows, longest] = middle, middle
    return np.concatenate((lower, upper), 1).reshape(2, -1, *boxes.shape[2:])
