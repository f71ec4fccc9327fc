from interp.interventions.ablate import ablated as ablated
from interp.interventions.ablate import every_component as every_component
from interp.interventions.ablation_effects import row_losses as row_losses
from interp.interventions.clean_run import CleanRun as CleanRun
from interp.interventions.clean_run import component_means as component_means
from interp.interventions.paths import attributions as attributions
from interp.interventions.paths import path_patched as path_patched
from interp.interventions.paths import senders as senders
