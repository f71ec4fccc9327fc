# What `import prooflens as pl` offers, by what a user wants to do. To add a name, add its line.

__version__: str

# get a model
from prooflens import architectures as architectures
from interp.models.export import export as export
from interp.models.spec import TransformerSpec as TransformerSpec
from interp.models.transformer import SequenceTransformer as SequenceTransformer
from interp.models.wrap import wrap as wrap
from trained.loading import load as load
from trained.loading import models as models

# say what it learns
from prooflens import tasks as tasks
from interp.tasks.base import Batch as Batch
from interp.attention.key_sets import repeated_tokens as repeated_tokens
from interp.run.gate import next_tokens as next_tokens

# know why it can
from prooflens import crasp as crasp
from prooflens import proofs as proofs
from interp.proofs.catalogue import construct as construct

# keep activations
from interp.store.extract import extract as extract
from interp.store.reader import open_store as open_store

# read weights
from prooflens import weights as weights
from interp.weights.head_weights import head_weights as head_weights
from interp.weights.weight_table import weight_table as weight_table

# look
from prooflens import attention as attention
from prooflens.inspection import inspect as inspect
from prooflens import plot as plot

# intervene
from prooflens import interventions as interventions
from prooflens import run as run
from interp.interventions.ablation_effects import ablate as ablate
from interp.interventions.patching import patch as patch
from interp.interventions.patching import patch_paths as patch_paths

# decide
from prooflens import probes as probes
from prooflens import roles as roles
from probes.agreement import agree as agree
from probes.certify.run import certify as certify
from probes.locate import locate as locate
from probes.probe_table import probe_table as probe_table
from probes.roles import find_roles as find_roles

# go back
from prooflens import rasp as rasp
from probes.own_rows import read_rows as read_rows
from probes.decompile.workflow import decompile as decompile

# train
from prooflens import trained as trained
from trained.grid import train as train

# fail
from prooflens import errors as errors
