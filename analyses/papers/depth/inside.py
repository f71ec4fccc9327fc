"""What a predictor of L_k holds and computes, layer by layer; trained or compiled.

    decoding   balanced accuracy of a logistic probe for E_j (block j has begun), and R² of a ridge
               regression for the count inside E_j as a share of BOS and the positions so far, at
               every site of the residual stream, on strings that the probe was not fitted to; and
               for labels that were exchanged between strings
    counting   total variation between each head's attention and the even average of the prefix,
               a head that looks at BOS, and one that looks at its own position
    ablation   strings that were right and are wrong once a layer's attention output is replaced by
               its mean over all scored positions, and how many of the wrong positions carry the
               letter of the last block (elsewhere the letter alone gives the answer)

A decodable formula is present, not necessarily used; the ablation says whether the layer is needed,
not for what.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import balanced_accuracy_score, r2_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from analyses.papers.depth.predictors import answers, letter_id
from prooflens.probes import residual_sites
from prooflens.tasks import Batch

__all__ = ["ablations", "counting", "decoding", "first_sites", "nested_shares"]

_POSITIONS = 8
_FOLDS = 5

_Features = Float[np.ndarray, "row sample feature"]
_Truth = Float[np.ndarray, "row sample"]


def decoding(model: Any, batch: Batch, *, seed: int = 0) -> pd.DataFrame:
    """Measure how well each formula or count can be decoded at each site.

    Counts are named ``#E2`` … Their score is R², and 0 if that is negative; formulas have an
    accuracy.
    """
    sites = residual_sites(model)
    with torch.no_grad():
        _, cache = model.run_with_cache(
            batch.inputs, names_filter=list(sites), return_cache_object=False
        )
    places = _sample(batch, seed)
    rows = []
    shares = nested_shares(batch)
    for name, latent in {**batch.latents, **shares}.items():
        truth = latent.gather(1, places).numpy()
        if truth.min() == truth.max():
            continue
        score = _probe_r2 if name in shares else _accuracy
        exchanged = truth[np.random.default_rng(seed).permutation(len(truth))]
        for site in sites:
            held = cache[site].double()
            index = places[..., None].expand(*places.shape, held.shape[-1])
            features = held.gather(1, index).numpy()
            accuracy, shuffled = (score(features, label) for label in (truth, exchanged))
            rows.append({"formula": name, "site": site, "accuracy": accuracy, "shuffled": shuffled})
    return pd.DataFrame(rows)


def nested_shares(batch: Batch) -> dict[str, Tensor]:
    """Return the share of positions so far (with BOS) at which each nested formula holds: ``#E2`` …
    → ``[batch, pos]``.

    An even head of a compiled program has this number as its average.
    """
    so_far = torch.arange(1, batch.inputs.shape[1] + 1)
    shares: dict[str, Tensor] = {}
    block = 2
    while f"E{block}" in batch.latents:
        before = batch.latents[f"E{block - 1}"].bool()
        counted = (batch.inputs == letter_id(block)) & before
        shares[f"#E{block}"] = counted.cumsum(1) / so_far
        block += 1
    return shares


@torch.no_grad()
def counting(model: Any, batch: Batch) -> pd.DataFrame:
    """Measure how far each head's attention is from even attention, from BOS alone, and from itself
    alone."""
    hooks = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.spec.n_layers)]
    _, cache = model.run_with_cache(batch.inputs, names_filter=hooks, return_cache_object=False)
    length = batch.inputs.shape[1]
    ideals = {
        "even": torch.tril(torch.ones(length, length)) / torch.arange(1, length + 1)[:, None],
        "bos": torch.eye(length)[:1].expand(length, length),
        "self": torch.eye(length),
    }
    rows = []
    for layer, hook in enumerate(hooks):
        pattern = cache[hook].float()
        for head in range(model.spec.heads[layer]):
            found = {
                name: float(((pattern[:, head] - ideal).abs().sum(-1) / 2)[batch.mask].mean())
                for name, ideal in ideals.items()
            }
            rows.append({"layer": layer, "head": head, **found})
    return pd.DataFrame(rows)


@torch.no_grad()
def ablations(model: Any, batch: Batch, last_letter: int) -> tuple[pd.DataFrame, dict[int, Tensor]]:
    """Replace each layer's attention output by its mean, and record which strings break.

    Args:
        model: A predictor of L_k.
        batch: Strings of L_k.
        last_letter: Token id of the letter in the last block.

    Returns:
        A row for each layer: ``layer``, ``broken`` (share of the strings that were right),
        ``on_last_letter`` (share of wrong positions with that letter); and layer → ``[batch]``
        which strings are wrong.
    """
    before = answers(model, batch).all(1)
    hooks = [f"blocks.{layer}.hook_attn_out" for layer in range(model.spec.n_layers)]
    _, cache = model.run_with_cache(batch.inputs, names_filter=hooks, return_cache_object=False)
    rows, wrong = [], {}
    for layer, hook in enumerate(hooks):
        mean = cache[hook][batch.mask].mean(0)

        def replace(value: Tensor, hook: Any, mean: Tensor = mean) -> Tensor:
            return mean.expand_as(value)

        output = model.run_with_hooks(batch.inputs, fwd_hooks=[(hook, replace)])
        right = answers(lambda _, output=output: output, batch)
        wrong[layer] = ~right.all(1)
        missed = ~right
        letter = (batch.inputs == last_letter)[missed]
        rows.append(
            {
                "layer": layer,
                "broken": float((wrong[layer] & before).sum() / max(int(before.sum()), 1)),
                "on_last_letter": float(letter.double().mean()) if len(letter) else float("nan"),
            }
        )
    return pd.DataFrame(rows), wrong


def first_sites(table: pd.DataFrame, level: float) -> Iterator[tuple[str, str | None]]:
    """Yield each formula with the first site at which a probe reaches a level; None if none
    does."""
    for name, group in table.groupby("formula", sort=False):
        reached = group[group["accuracy"] >= level]["site"].tolist()
        yield str(name), reached[0] if reached else None


def _sample(batch: Batch, seed: int) -> Tensor:
    """Random positions inside each string, ``[batch, sample]``."""
    lengths = batch.mask.sum(1).numpy()
    drawn = np.random.default_rng(seed).random((len(lengths), _POSITIONS))
    return torch.from_numpy(1 + (drawn * lengths[:, None]).astype(np.int64))


def _accuracy(features: _Features, truth: _Truth) -> float:
    """Return the balanced accuracy of a logistic regression on held-out strings."""
    said = _held_out_predictions(LogisticRegression(C=10.0, max_iter=500), features, truth > 0)
    return float(balanced_accuracy_score(truth.ravel() > 0, said))


def _probe_r2(features: _Features, truth: _Truth) -> float:
    """Return the R² of a ridge regression on held-out strings, or 0 if it is negative."""
    return max(0.0, float(r2_score(truth.ravel(), _held_out_predictions(Ridge(), features, truth))))


def _held_out_predictions(probe: Any, features: _Features, truth: np.ndarray) -> np.ndarray:
    """Return a probe's predictions for strings to which it was not fitted."""
    groups = np.repeat(np.arange(len(truth)), truth.shape[1])
    flat, scaled = features.reshape(len(groups), -1), make_pipeline(StandardScaler(), probe)
    folds = GroupKFold(_FOLDS)
    found: np.ndarray = cross_val_predict(scaled, flat, truth.ravel(), groups=groups, cv=folds)
    return found
