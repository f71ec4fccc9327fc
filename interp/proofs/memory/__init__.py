"""The constructive proofs of `memory` as weights (§1.4).

`fixed`      Task I, Boolean: exponentials select lags, ramps read f off
`adaptive`   Task II: the same kernels, shifted by what the layer before has read
`corners`    functions of ±1 as two ReLUs a corner
`rounding`   what evaluating ill-conditioned sums of heads adds
"""

from interp.proofs.memory.adaptive import construct_adaptive_memory
from interp.proofs.memory.fixed import construct_fixed_memory

__all__ = ["construct_adaptive_memory", "construct_fixed_memory"]
