from interp.models.baselines import LSTMSpec as LSTMSpec
from interp.models.baselines import MLPSpec as MLPSpec
from interp.models.baselines import RNNSpec as RNNSpec
from interp.models.checkpoint import load_checkpoint as load_checkpoint
from interp.models.checkpoint import read_metadata as read_metadata
from interp.models.checkpoint import save_checkpoint as save_checkpoint
from interp.models.convolution import ConvolutionSpec as ConvolutionSpec
from interp.models.kinds import build as build
