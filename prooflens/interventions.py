"""Interventions: ablation, patching, path patching, and losses without a component."""

from interp.interventions.ablation_effects import ablate, loss_unit, position_losses, row_losses
from interp.interventions.components import Component, components, every_component
from interp.interventions.patching import attributions, path_patched, senders
from interp.interventions.replacement import ablated, replacement

__all__ = [
    "Component",
    "ablate",
    "ablated",
    "attributions",
    "components",
    "every_component",
    "loss_unit",
    "path_patched",
    "position_losses",
    "replacement",
    "row_losses",
    "senders",
]
