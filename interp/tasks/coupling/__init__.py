"""Tasks of `coupling`: averages whose rank is known."""

from interp.tasks.coupling.linear import LinearKernel
from interp.tasks.coupling.pod import BASES, Basis, PodCoupling, infinite_sine_coupling

__all__ = ["BASES", "Basis", "LinearKernel", "PodCoupling", "infinite_sine_coupling"]
