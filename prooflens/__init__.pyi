# What `import prooflens as pl` offers, by what a user wants to do. To add a name, add its line.

__version__: str

# get a model
from interp.hooks.conformance import conformance as conformance
from interp.hooks.hook_sites import HookSite as HookSite
from interp.models.card import ModelCard as ModelCard
from interp.models.checkpoint import save_checkpoint as save_checkpoint
from interp.models.export import export as export
from interp.models.open_attention import encoder_names as encoder_names
from interp.models.open_attention import open_attention as open_attention
from interp.models.spec import TransformerSpec as TransformerSpec
from interp.models.transformer import SequenceTransformer as SequenceTransformer
from interp.models.wrap import wrap as wrap
from trained.loading import load as load
from trained.loading import models as models

# say what it learns
from prooflens import tasks as tasks
from interp.tasks.base import Batch as Batch
from interp.tasks.catalogue import register_task as register_task
from interp.tasks.coupling import PodCoupling as PodCoupling
from interp.tasks.depth import PrefixPrediction as PrefixPrediction
from interp.tasks.memory import AdaptiveMemory as AdaptiveMemory
from interp.tasks.memory import FixedMemory as FixedMemory
from interp.tasks.memory import KernelMemory as KernelMemory
from interp.tasks.relation import TokenRelation as TokenRelation
from interp.tasks.template import TemplateTask as TemplateTask

# know why it can
from prooflens import crasp as crasp
from prooflens import proofs as proofs
from interp.program.parser import parse_program as parse_program
from interp.proofs.depth.compiler import compile_program as compile_program
from interp.proofs.mechanism import Certificate as Certificate
from interp.proofs.mechanism import Construction as Construction
from interp.proofs.random_basis import random_basis as random_basis
from interp.proofs.catalogue import construct as construct

# keep activations
from prooflens import interop as interop
from interp.store.extract import extract as extract
from interp.store.reader import open_store as open_store

# read weights
from prooflens import weights as weights
from interp.weights.composition import composition_table as composition_table
from interp.weights.head_weights import head_weights as head_weights
from interp.weights.weight_table import weight_table as weight_table

# look
from prooflens import attention as attention
from interp.attention.attention_to_keys import attention_table as attention_table
from interp.attention.key_sets import repeated_tokens as repeated_tokens
from prooflens.inspection import Inspected as Inspected
from prooflens.inspection import inspect as inspect
from prooflens import plot as plot

# intervene
from prooflens import interventions as interventions
from prooflens import run as run
from interp.attribution.direct_logit_attribution import Direction as Direction
from interp.attribution.direct_logit_attribution import (
    direct_logit_attribution as direct_logit_attribution,
)
from interp.attribution.residual_decomposition import (
    residual_decomposition as residual_decomposition,
)
from interp.interventions.ablation_effects import ablate as ablate
from interp.run.gate import next_tokens as next_tokens
from interp.interventions.components import Component as Component
from interp.interventions.patching import patch as patch
from interp.interventions.patching import patch_paths as patch_paths
from interp.interventions.patching import Receiver as Receiver

# decide
from prooflens import probes as probes
from prooflens import stats as stats
from probes.agreement import agree as agree
from probes.certify.run import certify as certify
from probes.head_scores import null as null
from probes.locate import locate as locate
from probes.probe_table import probe_table as probe_table
from prooflens import roles as roles
from probes.roles import find_roles as find_roles

# go back
from prooflens import rasp as rasp
from probes.decompile.counting import decompile_counting as decompile_counting
from probes.given_rows import read_rows as read_rows
from probes.decompile.workflow import decompile as decompile

# train
from prooflens import trained as trained
from trained.grid import train as train
from trained.recipe import Recipe as Recipe

# fail
from prooflens import errors as errors
from interp.errors import ProoflensError as ProoflensError
