from interp.hooks.conformance import conformance as conformance
from interp.hooks.hook_sites import HookSite as HookSite
from interp.models.attention.heads import Attention as Attention
from interp.models.baselines import Baseline as Baseline
from interp.models.baselines import BaselineSpec as BaselineSpec
from interp.models.baselines import LSTMSpec as LSTMSpec
from interp.models.baselines import MLPSpec as MLPSpec
from interp.models.baselines import RNNSpec as RNNSpec
from interp.models.card import ModelCard as ModelCard
from interp.models.checkpoint import load_checkpoint as load_checkpoint
from interp.models.checkpoint import read_metadata as read_metadata
from interp.models.checkpoint import save_checkpoint as save_checkpoint
from interp.models.export import export_gpt2 as export_gpt2
from interp.models.ffn import HiddenLayer as HiddenLayer
from interp.models.kinds import build as build
from interp.models.kinds import register_model as register_model
from interp.models.open_attention import encoder_names as encoder_names
from interp.models.open_attention import open_attention as open_attention
from interp.models.pretrained import Pretrained as Pretrained
from interp.models.pretrained import load_pretrained as load_pretrained
from interp.models.spec import Activation as Activation
from interp.models.spec import Positions as Positions
from interp.models.spec import TransformerSpec as TransformerSpec
from interp.models.tensor_files import read_tensors as read_tensors
from interp.models.tensor_files import write_tensors as write_tensors
from interp.models.transformer import SequenceTransformer as SequenceTransformer
from interp.models.wrap import WrappedModule as WrappedModule
from interp.models.wrap import wrap as wrap
from interp.weights.head_weights.calling_transformers import (
    quiet_transformers as quiet_transformers,
)
