"""The shipped models, the recipes they were trained by, and the trainer."""

from trained import zoo
from trained.ensemble import Ensemble, Rows, training_set
from trained.fit import Fit, fit, save_fit
from trained.grid import metrics_table, train
from trained.loading import folder_of, load
from trained.metrics import EVALUATION_SEED, evaluate
from trained.packaged import PACKAGED
from trained.recipe import Recipe, read_recipe, recipes
from trained.run import Run, Training
from trained.stack_runner import partial_of, stop_asked, training_place
from trained.zoo import Shipped, folder, names

__all__ = [
    "EVALUATION_SEED",
    "PACKAGED",
    "Ensemble",
    "Fit",
    "Recipe",
    "Rows",
    "Run",
    "Shipped",
    "Training",
    "evaluate",
    "fit",
    "folder",
    "folder_of",
    "load",
    "metrics_table",
    "names",
    "partial_of",
    "read_recipe",
    "recipes",
    "save_fit",
    "stop_asked",
    "train",
    "training_place",
    "training_set",
    "zoo",
]
