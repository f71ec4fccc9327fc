"""Tasks of single experiments of `coupling`: changed orders, and attention that can be read.

They are registered under their kinds when this package is imported, so that recipes and checkpoints
of the laboratory can name them; a program that does not import it knows no such kind and says so.
"""

from analyses.papers.coupling.tasks.images import PermutedPatches
from analyses.papers.coupling.tasks.readable import IndexedAverage, NearestPoint, SegmentCentres
from analyses.papers.coupling.tasks.sentences import PermutedTranslation
from prooflens.tasks import register_task

__all__ = [
    "IndexedAverage",
    "NearestPoint",
    "PermutedPatches",
    "PermutedTranslation",
    "SegmentCentres",
]

register_task("nearest_point", NearestPoint)
register_task("segment_centres", SegmentCentres)
register_task("indexed_average", IndexedAverage)
register_task("permuted_patches", PermutedPatches)
register_task("permuted_translation", PermutedTranslation)
