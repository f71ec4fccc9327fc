"""The constructive proofs of `memory` (§1.4) as weights, with bounds on their errors.

fixed      Task I, Boolean: exponentials select lags, ramps compute f; and Task II without
           content in the scores, at a higher cost
kernels    Task III, and Task I with real readouts: sums of exponentials or powers, a ReLU
           network
adaptive   Task II: the same kernels, shifted by what the previous layer has read
one_layer  the common parts of proofs with one layer: heads that extract a memory each, and
           slots
rounding   bounds on rounding errors, and the choice of a lag's fit that they imply
"""

from interp.proofs.memory.adaptive import construct_adaptive_memory
from interp.proofs.memory.fixed import construct_fixed_memory, construct_gated_memory
from interp.proofs.memory.kernels import construct_kernel_memory

__all__ = [
    "construct_adaptive_memory",
    "construct_fixed_memory",
    "construct_gated_memory",
    "construct_kernel_memory",
]
