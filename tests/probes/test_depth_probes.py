"""Compiled programs through store and probes: every name is found where the mechanism says."""

from pathlib import Path

import numpy as np
import pytest

from analyses.benchmarks.proof_cases import PROGRAMS as CASES
from interp.store import extract
from probes.activations import sampled_positions
from probes.linear import decode
from probes.positions import residual_sites

NAMED = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", ["compiled-L_5-32-ramp", "compiled-L_4-48-sign"])
def test_probes_find_every_name_at_the_layer_of_its_depth(name: str, tmp_path: Path) -> None:
    made = NAMED[name].construct()
    sites = residual_sites(made.model)
    store = extract(made.model, made.task, list(sites), tmp_path / "store", rows=96, seed=3)
    length = made.task.longest
    mask = np.ones((96, length + 1), dtype=bool)
    mask[:, 0] = False
    at = sampled_positions(mask, length)
    latents = {n: v[:, at].astype(float) for n, v in store.latents().items() if v.ndim == 2}
    features = {site: store.activation(site, positions=at).astype(float) for site in sites}
    names = [line.name for line in made.task.program.lines if line.name != "E1"]
    assert set(names) < set(latents)
    for latent in names:
        found = [decode(features[site], latents[latent]).score for site in sites]
        first = next(site for site, score in zip(sites, found, strict=True) if score > 0.999)
        assert first == made.mechanism.written[latent], (latent, found)
