"""Interventions: ablation, patching, path patching, and losses without a component."""

from interp.attribution.direct_logit_attribution import Direction, direct_logit_attribution
from interp.attribution.residual_decomposition import residual_decomposition
from interp.interventions.ablation_effects import ablate, loss_unit
from interp.interventions.components import Component, components, every_component
from interp.interventions.patching import (
    Receiver,
    attributions,
    patch,
    patch_paths,
)
from interp.interventions.replacement import ablated, replacement

__all__ = [
    "Component",
    "Direction",
    "Receiver",
    "ablate",
    "ablated",
    "attributions",
    "components",
    "direct_logit_attribution",
    "every_component",
    "loss_unit",
    "patch",
    "patch_paths",
    "replacement",
    "residual_decomposition",
]
