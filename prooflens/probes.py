"""Probes, controls, exchange between rows, and agreement of a model with a proof."""

from probes.agreement import (
    Readable,
    agreement,
    answered_share,
    overall,
    roles_and_layers,
    statements_of,
)
from probes.controls import curve_table
from probes.interchange import interchange_table
from probes.kernels import kernel_null, kernel_table, layer_kernels
from probes.layerwise import residual_sites
from probes.linear import decode
from probes.locate import holders, locate
from probes.nesting import nesting_panel
from probes.probe_table import layer_map
from probes.rounds import first_decodable, round_order
from probes.sampling import sampled_positions

__all__ = [
    "Readable",
    "agreement",
    "answered_share",
    "curve_table",
    "decode",
    "first_decodable",
    "holders",
    "interchange_table",
    "kernel_null",
    "kernel_table",
    "layer_kernels",
    "layer_map",
    "locate",
    "nesting_panel",
    "overall",
    "residual_sites",
    "roles_and_layers",
    "round_order",
    "sampled_positions",
    "statements_of",
]
