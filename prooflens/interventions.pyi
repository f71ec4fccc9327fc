from interp.attribution.direct_logit_attribution import Direction as Direction
from interp.attribution.direct_logit_attribution import (
    direct_logit_attribution as direct_logit_attribution,
)
from interp.attribution.residual_decomposition import (
    residual_decomposition as residual_decomposition,
)
from interp.interventions.ablation_effects import ablate as ablate
from interp.interventions.ablation_effects import loss_unit as loss_unit
from interp.interventions.components import Component as Component
from interp.interventions.components import components as components
from interp.interventions.components import every_component as every_component
from interp.interventions.patching import Receiver as Receiver
from interp.interventions.patching import attributions as attributions
from interp.interventions.patching import patch as patch
from interp.interventions.patching import patch_paths as patch_paths
from interp.interventions.replacement import ablation_outputs as ablation_outputs
from interp.interventions.replacement import replacement as replacement
