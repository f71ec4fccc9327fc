"""At which sublayer does each latent become linearly decodable?

The residual stream is probed where it enters the first block, after each attention and after each
FFN, for every latent of the task. Read the map along a row: where a memory's score rises, that
sublayer put it there; where an answer's score rises at an FFN while its arguments were decodable
before, the FFN is the candidate for its readout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import stream_after
from interp.stats.head_table import head_table, score_row
from interp.stats.nulls import decodability_null
from probes.activations import Sampled
from probes.controls import decode_nonlinearly
from probes.linear import Decoding, decode

__all__ = ["decodability", "residual_sites"]


def residual_sites(model: HookedModel) -> tuple[str, ...]:
    """Hooks of the residual stream in order: of the embedding, and after each sublayer."""
    return ("hook_embed", *(hook for _, hook in stream_after(model)))


def decodability(sampled: Sampled, sites: Sequence[str]) -> pd.DataFrame:
    """Linear (and, in front of an FFN, nonlinear) decodability of every latent at every site.

    Returns:
        A head table: component ``layer``, metrics ``decodability`` and
        ``nonlinear_decodability``, site = the hook, target = the latent. The null
        permutes rows. q is over all sites and latents.
    """
    return head_table(_rows(sampled, sites), family=("metric",))


def _rows(sampled: Sampled, sites: Sequence[str]) -> Iterator[dict[str, Any]]:
    latents, groups = sampled.latents(), sampled.groups()
    for site in sites:
        features = sampled.features(site)
        layer = int(site.split(".")[1]) if site.startswith("blocks.") else -1
        probes: dict[str, Callable[..., Decoding]] = {"decodability": decode}
        if site.endswith("resid_mid"):
            probes["nonlinear_decodability"] = decode_nonlinearly
        for name, latent in latents.items():
            for metric, probe in probes.items():
                found = probe(features, latent, groups=groups)
                null = decodability_null(found.predicted, latent)
                yield score_row(
                    metric,
                    found.score,
                    null,
                    component="layer",
                    layer=layer,
                    site=site,
                    target=name,
                )
