"""Template tasks solved by construction (`template` §2.3), by equality heads, copying heads and
ramps."""

from interp.proofs.template.cases import CASES
from interp.proofs.template.certificate import certificate_of
from interp.proofs.template.construction import construct_template
from interp.proofs.template.plan import one_layer_suffices

__all__ = ["CASES", "certificate_of", "construct_template", "one_layer_suffices"]
