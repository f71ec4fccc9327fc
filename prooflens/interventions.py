"""Interventions: ablation, patching, path patching, and losses without a component."""

from interp.interventions.ablate import ablated, every_component
from interp.interventions.ablation_effects import ablate, loss_unit, position_losses, row_losses
from interp.interventions.clean_run import CleanRun, component_means
from interp.interventions.components import Component, components
from interp.interventions.paths import attributions, path_patched, senders

__all__ = [
    "CleanRun",
    "Component",
    "ablate",
    "ablated",
    "attributions",
    "component_means",
    "components",
    "every_component",
    "loss_unit",
    "path_patched",
    "position_losses",
    "row_losses",
    "senders",
]
