"""Memory tasks (`memory` §1.2): the answer at t depends on a few earlier inputs, or on kernels.

FixedMemory     y_t = f(x_t, x_{t−T_1}, …, x_{t−T_M}), f Boolean on ±1
RealMemory      the same, f Lipschitz
AdaptiveMemory  the lags depend on what the tokens say, round after round
KernelMemory    y_t = f((ρ_1 * x)(t), …, (ρ_M * x)(t))
"""

from interp.tasks.memory.adaptive import AdaptiveMemory
from interp.tasks.memory.kernels import KernelMemory
from interp.tasks.memory.lagged import FixedMemory, RealMemory

__all__ = ["AdaptiveMemory", "FixedMemory", "KernelMemory", "RealMemory"]
