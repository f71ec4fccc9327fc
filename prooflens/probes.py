"""Probes, controls, exchange between rows, and agreement of a model with a proof."""

from probes.activations import sampled_positions
from probes.agreement import (
    Readable,
    agree,
    agreement,
    answered_share,
    overall,
    roles_and_layers,
    statements_of,
)
from probes.head_scores import null
from probes.interchange import interchange_table
from probes.kernels import layer_kernels
from probes.linear import decode, kind_of, probe_for
from probes.locate import holders, locate
from probes.nesting import nesting_panel
from probes.positions import residual_sites
from probes.probe_table import first_decodable, layer_map, probe_source, probe_table

__all__ = [
    "Readable",
    "agree",
    "agreement",
    "answered_share",
    "decode",
    "first_decodable",
    "holders",
    "interchange_table",
    "kind_of",
    "layer_kernels",
    "layer_map",
    "locate",
    "nesting_panel",
    "null",
    "overall",
    "probe_for",
    "probe_source",
    "probe_table",
    "residual_sites",
    "roles_and_layers",
    "sampled_positions",
    "statements_of",
]
