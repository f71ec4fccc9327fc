"""Tasks of `coupling`: averages whose rank is known, changed orders, and attention one can read."""

from interp.tasks.coupling.averages import IndexedAverage
from interp.tasks.coupling.bases import BASES, Basis, infinite_sine_coupling
from interp.tasks.coupling.images import PermutedPatches
from interp.tasks.coupling.linear import LinearKernel
from interp.tasks.coupling.pod import PodCoupling
from interp.tasks.coupling.points import NearestPoint
from interp.tasks.coupling.segments import SegmentCentres
from interp.tasks.coupling.sentences import PermutedTranslation

__all__ = [
    "BASES",
    "Basis",
    "IndexedAverage",
    "LinearKernel",
    "NearestPoint",
    "PermutedPatches",
    "PermutedTranslation",
    "PodCoupling",
    "SegmentCentres",
    "infinite_sine_coupling",
]
