from interp.weights.diagonals import diagonal_table as diagonal_table
from interp.weights.metrics import METRICS as METRICS
from interp.weights.metrics import effective_rank as effective_rank
from interp.weights.spectrum import VectorMoments as VectorMoments
from interp.weights.spectrum import fit_decay as fit_decay
from interp.weights.spectrum import head_spectra as head_spectra
from interp.weights.weight_table import circuit_crop as circuit_crop
from interp.weights.weight_table import singular_values as singular_values
