"""What can be read from weights alone: circuits, scores and their nulls."""

from interp.weights.composition import composition_table
from interp.weights.head_weights import Circuit, HeadWeights, head_weights
from interp.weights.head_weights.architectures import Architecture
from interp.weights.low_rank_circuit import low_rank_circuits
from interp.weights.metrics import BASIC, METRICS, effective_rank
from interp.weights.revisions import weights_over_training
from interp.weights.weight_nulls import WeightNull
from interp.weights.weight_table import circuit_crop, weight_table

__all__ = [
    "BASIC",
    "METRICS",
    "Architecture",
    "Circuit",
    "HeadWeights",
    "WeightNull",
    "circuit_crop",
    "composition_table",
    "effective_rank",
    "head_weights",
    "low_rank_circuits",
    "weight_table",
    "weights_over_training",
]
