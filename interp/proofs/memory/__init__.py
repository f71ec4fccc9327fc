"""The constructive proofs of `memory` (§1.4) as weights, and bounds on what is impossible.

`fixed`      Task I, Boolean: exponentials select lags, ramps read f off; and Task II without
             content in the scores, at a price
`kernels`    Task III, and Task I with real readouts: sums of exponentials or powers, a ReLU network
`adaptive`   Task II: the same kernels, shifted by what the layer before has read
`one_layer`  what the proofs of one layer share: heads that hold a memory each, and slots
`rounding`   what floating point adds, and which fits of a lag that leaves
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
