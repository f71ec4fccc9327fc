"""Tasks of `coupling`: averages whose rank is known."""

from interp.tasks.coupling.bases import BASES, Basis, infinite_sine_coupling
from interp.tasks.coupling.linear import LinearKernel
from interp.tasks.coupling.pod import PodCoupling

__all__ = ["BASES", "Basis", "LinearKernel", "PodCoupling", "infinite_sine_coupling"]
