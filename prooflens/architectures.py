"""Models: specs, what is built from them, baselines, and models of other people."""

from interp.hooks.conformance import conformance
from interp.hooks.hook_sites import HookSite
from interp.models.attention.heads import Attention
from interp.models.baselines import Baseline, BaselineSpec, LSTMSpec, MLPSpec, RNNSpec
from interp.models.card import ModelCard
from interp.models.checkpoint import load_checkpoint, read_metadata, save_checkpoint
from interp.models.export import export_gpt2
from interp.models.ffn import HiddenLayer
from interp.models.kinds import build, register_model
from interp.models.open_attention import encoder_names, open_attention
from interp.models.pretrained import Pretrained, load_pretrained
from interp.models.spec import Activation, Positions, TransformerSpec
from interp.models.tensor_files import read_tensors, write_tensors
from interp.models.transformer import SequenceTransformer
from interp.models.wrap import WrappedModule, wrap
from interp.weights.head_weights.calling_transformers import quiet_transformers

__all__ = [
    "Activation",
    "Attention",
    "Baseline",
    "BaselineSpec",
    "HiddenLayer",
    "HookSite",
    "LSTMSpec",
    "MLPSpec",
    "ModelCard",
    "Positions",
    "Pretrained",
    "RNNSpec",
    "SequenceTransformer",
    "TransformerSpec",
    "WrappedModule",
    "build",
    "conformance",
    "encoder_names",
    "export_gpt2",
    "load_checkpoint",
    "load_pretrained",
    "open_attention",
    "quiet_transformers",
    "read_metadata",
    "read_tensors",
    "register_model",
    "save_checkpoint",
    "wrap",
    "write_tensors",
]
