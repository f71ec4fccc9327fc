"""Models: specs, what is built from them, baselines, and models of other people."""

from interp.models.attention.heads import Attention
from interp.models.baselines import Baseline, BaselineSpec, LSTMSpec, MLPSpec, RNNSpec
from interp.models.checkpoint import load_checkpoint, read_metadata, save_checkpoint
from interp.models.export import export_gpt2
from interp.models.ffn import HiddenLayer
from interp.models.kinds import build, register_model
from interp.models.pretrained import Pretrained, load_pretrained, quiet_transformers
from interp.models.spec import Activation, Positions, TransformerSpec
from interp.models.tensor_files import read_tensors, write_tensors
from interp.models.transformer import SequenceTransformer
from interp.models.wrap import WrappedModule, wrap

__all__ = [
    "Activation",
    "Attention",
    "Baseline",
    "BaselineSpec",
    "HiddenLayer",
    "LSTMSpec",
    "MLPSpec",
    "Positions",
    "Pretrained",
    "RNNSpec",
    "SequenceTransformer",
    "TransformerSpec",
    "WrappedModule",
    "build",
    "export_gpt2",
    "load_checkpoint",
    "load_pretrained",
    "quiet_transformers",
    "read_metadata",
    "read_tensors",
    "register_model",
    "save_checkpoint",
    "wrap",
    "write_tensors",
]
