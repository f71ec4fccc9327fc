"""Lemmas: what roles say of a model, as numbers that are computed from the weights.

A lemma names a part of the model, says in words what holds of it for every input of the domain, and
gives the number up to which it holds: small if the role is right, large if it is wrong. The cover
of a proof determines its lemmas (:func:`lemmas_of`). The bound is computed on the cells and rests
on none of these numbers: they explain it. The checker of certificates (:mod:`probes.certify.check`)
computes them by itself, with none of this code.

    outside_lags       a head attends to certain lags: attention elsewhere, over all ±1 inputs
    orderless          attention does not depend on order: the spread of its scores
    beside_average     heads write a multiple of a moving average: the share of something else
    beside_named       the last token names the lag: attention elsewhere
    after_the_earlier  a head attends to the token after an earlier one: attention elsewhere
    of_three_paths     the largest token is attended to and copied: scores and logits
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from interp.bounds.affine import UP, Affine, Arithmetic, box
from interp.bounds.attention import score_forms
from interp.bounds.network import after_attention, apply_norm, attention_outside, embed_inputs
from interp.bounds.passed_on import weights_of_keys
from interp.bounds.three_paths import Tables
from interp.tasks.depth.languages import language
from interp.tasks.depth.strings import to_inputs
from interp.tasks.memory.kernels import MemoryKernel


@dataclass(frozen=True)
class Lemma:
    """A statement about a part of a model that holds up to a number.

    Attributes:
        role: The role's name in the registry, or ``none`` where no role is used.
        component: The part, such as ``head 0.1`` or ``ffn 0``.
        statement: What holds for every input of the domain, in words.
        number: The lemma's bound: small if the role is right, large if it is wrong.
    """

    role: str
    component: str
    statement: str
    number: float


def lemmas_of(
    model: Any, task: Any, domain: Mapping[str, Any], cover: Mapping[str, Any]
) -> tuple[Lemma, ...]:
    """Compute the lemmas that belong to a cover by mechanism.

    Args:
        model: The model that the cover fits.
        task: The domain's task.
        domain: The domain as JSON data: ``length`` and ``box`` where it has them.
        cover: The cover as in a certificate: its name, and the data that it is made from.

    Returns:
        The lemmas; none for other covers.
    """
    match cover["cover"]:
        case "cases":
            lengths = range(max(task.lags) + 1, domain["length"] + 1)
            heads = [(int(at[0]), int(at[1]), list(at[2])) for at in cover["heads"]]
            return outside_lags(model, lengths, heads)
        case "multisets":
            letters = language(task.language).letters
            ids = to_inputs(task.program, np.array([[0, 1]]), letters, 2)[0].numpy()
            return orderless(model, ids)
        case "slices":
            rho = MemoryKernel.parse(task.kernels[0]).values(np.arange(float(domain["length"])))
            return beside_average(model, rho[::-1], domain["box"])
        case "pairs":
            lengths = range(max(task.locations) + 1, domain["length"] + 1)
            codes = np.array(list(product((-1.0, 1.0), repeat=task.bits)))
            size, pieces = domain["box"], cover["pieces"]
            return beside_named(model, codes, task.location_tables()[0], lengths, size, pieces)
    return ()


def outside_lags(
    model: Any, lengths: Iterable[int], heads: Iterable[tuple[int, int, Sequence[int]]]
) -> tuple[Lemma, ...]:
    """Bound the attention that heads give to other lags than theirs, over all inputs of size at
    most 1.

    Args:
        model: A covered model of real inputs.
        lengths: The lengths of rows, whose last position is judged.
        heads: Layer, head, and the lags that it is said to attend to.

    Returns:
        One lemma for each head, with the largest such attention.
    """
    lengths = tuple(lengths)
    return tuple(
        Lemma(
            "memory-location" if len(lags) == 1 else "memory-mixture",
            f"head {layer}.{head}",
            f"attention outside lag {' and '.join(map(str, lags))} is at most this",
            max(attention_outside(model, n, layer, head, lags) for n in lengths),
        )
        for layer, head, lags in heads
    )


def orderless(model: Any, ids: Int[np.ndarray, " token"]) -> tuple[Lemma, ...]:
    """State that only the numbers of earlier tokens matter, and bound how uneven attention is.

    Args:
        model: A model for which :func:`~interp.bounds.passed_on.not_orderless` is empty.
        ids: Every token that a row may have.

    Returns:
        The lemma that the order changes nothing (0), and the largest difference of scores.
    """
    spread = 0.0
    if model.spec.n_layers:
        ar = Arithmetic("real", budget=0)
        x = apply_norm(model.blocks[0].ln1, embed_inputs(model, ids[None], ar), ar)
        lags = np.zeros((len(ids), len(ids)), dtype=np.int64)
        low, high = score_forms(model.blocks[0].attn, x, x, lags, ar)[0].bounds()
        spread = float((high.max(-1) - low.min(-1)).max() * UP)
    scores = "largest difference of scores"
    return (*counts_alone(), Lemma("counter", "layer 0", scores, spread))


def beside_average(model: Any, rho: Float64[np.ndarray, " pos"], size: float) -> tuple[Lemma, ...]:
    """Compute how much of what attention writes does not go through the average Σ_s ρ_s x_s.

    In such a model the stream after attention is a linear function of the inputs. Its coefficients
    are split into those of a multiple of the average (least squares) and the rest. The lemma's
    number is the size of the rest (sum of absolute values) divided by that of all coefficients.

    Args:
        model: A model for which :func:`~interp.bounds.passed_on.not_along` is empty.
        rho: The weights ρ, oldest input first.
        size: The largest size of an input.

    Returns:
        One lemma.
    """
    n = len(rho)
    ar = Arithmetic("real", symbols=n)
    inputs = box(np.zeros((1, n, 1)), np.full((n, 1), size))
    stream = embed_inputs(model, inputs, ar)
    own = after_attention(model.blocks[0], stream, ar, last_only=True).generators[:n, 0, 0]
    rest = own - np.outer(rho, rho @ own / (rho @ rho))
    share = float(np.abs(rest).sum() / np.abs(own).sum())
    words = "share of what is passed on beside the average"
    return (Lemma("memory-location", "layer 0", words, share),)


def beside_named(
    model: Any,
    codes: Float64[np.ndarray, "code bit"],
    lags: Sequence[int],
    lengths: Sequence[int],
    size: float,
    pieces: int,
) -> tuple[Lemma, ...]:
    """Bound the attention outside the lag that the last token names, for each address and head.

    Args:
        model: A model for which :func:`~interp.bounds.passed_on.not_named` is empty.
        codes: The addresses, as bits ±1 of the last token.
        lags: The lag that each address names.
        lengths: The lengths of rows.
        size: The largest size of a value.
        pieces: The number of intervals into which the last token's value is split.

    Returns:
        One lemma for each address and head of the last layer.
    """
    ends = np.linspace(-size, size, pieces + 1)
    found = []
    for number, (code, lag) in enumerate(zip(codes.tolist(), lags, strict=True)):
        centre = np.array([[((a + b) / 2, *code)] for a, b in pairwise(ends)])
        noise = np.zeros((1, *centre.shape))
        noise[..., 0] = (ends[1] - ends[0]) / 2 * UP
        last = Affine(centre, noise, np.zeros_like(centre))
        low, _ = weights_of_keys(model, last, lag, lengths, Arithmetic("real", symbols=1))
        words = f"attention outside lag {lag}, named by token {number}, is at most this"
        for head, share in enumerate(low[:, :, 0, 0].min(0).tolist()):
            place = f"head {model.spec.n_layers - 1}.{head}"
            found.append(Lemma("memory-location", place, words, (1 - share) * UP))
    return tuple(found)


def of_three_paths(tables: Tables) -> tuple[Lemma, ...]:
    """Return lemmas about a one-layer model of the maximum task, from tables of its logits.

    They bound how far attention scores fall from one token to the next and vary in a row, how much
    a token that is attended to raises its own logit over the mean, how far the other logits differ,
    and how much the query's own token changes logits on the direct path.

    Args:
        tables: Attention scores and logits of the model, split by path.
    """
    own = np.arange(tables.vocabulary)
    copied = tables.ov[:, own, own] - tables.ov.mean(-1)
    others = tables.ov.copy()
    others[:, own, own] = np.nan
    spread = np.nanmax(others, axis=-1).max() - np.nanmin(others, axis=-1).min()
    rows = tables.scores.reshape(tables.vocabulary, -1)
    fall = max(0.0, -np.diff(tables.scores, axis=2).min())
    head, noise = "head 0.0", "largest spread of other logits"
    rises = "largest fall of the score from token k to k + 1"
    apart = "largest difference of scores in a row"
    copies = "least rise of a token's own logit over its row's mean"
    query = "largest difference that the query's own token makes"
    direct = (tables.direct.max(1) - tables.direct.min(1)).max()
    return (
        Lemma("dense", head, rises, float(fall)),
        Lemma("dense", head, apart, float((rows.max(1) - rows.min(1)).max())),
        Lemma("copying", head, copies, float(copied.min())),
        Lemma("copying", head, noise, float(spread)),
        Lemma("none", "direct path", query, float(direct)),
    )


def counts_alone() -> tuple[Lemma, ...]:
    """Return the lemma that a first layer depends on earlier letters only through how many there
    are of each.

    Its number is 0: in the models that the cover fits this holds exactly, and nothing is computed.
    """
    return (Lemma("counter", "layer 0", "what the order of earlier tokens changes", 0.0),)


def after_the_earlier(elsewhere: Float64[np.ndarray, " head"]) -> tuple[Lemma, ...]:
    """Return the lemmas that heads of a second layer attend to the token after the one that equals
    the last.

    Args:
        elsewhere: The largest attention of each head to other keys, over all strings
            (:func:`~interp.bounds.two_layers.count_right`).
    """
    words = "attention outside the token after an earlier equal one is at most this"
    return tuple(
        Lemma("induction", f"head 1.{head}", words, float(most) * UP)
        for head, most in enumerate(elsewhere)
    )


def readout(off: float) -> tuple[Lemma, ...]:
    """Return the lemma that, at the centres of a cover's cells, the rest of the model gives the
    right answers up to an error.

    Args:
        off: The largest error at the centres.
    """
    words = "answers at middles of cases are off by at most this"
    return (Lemma("readout", "ffn 0", words, off),)
