"""prooflens: check what a transformer does against a proof of what it can do.

The names below are the library's front door; each is loaded when it is first used, so importing
``interp`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.errors import ProoflensError
    from interp.models.checkpoint import load_checkpoint, save_checkpoint
    from interp.models.conformance import conformance
    from interp.models.factors import open_factors
    from interp.models.spec import TransformerSpec
    from interp.models.transformer import SequenceTransformer
    from interp.models.wrap import wrap
    from interp.proofs.mechanism import Certificate, Construction, Mechanism
    from interp.proofs.memory import construct_fixed_memory
    from interp.store import ActivationStore, extract
    from interp.tasks.base import Batch, Task
    from interp.tasks.catalogue import register_task
    from interp.tasks.memory import FixedMemory

_HOMES = {
    "ActivationStore": "interp.store",
    "Batch": "interp.tasks.base",
    "Certificate": "interp.proofs.mechanism",
    "Construction": "interp.proofs.mechanism",
    "FixedMemory": "interp.tasks.memory",
    "Mechanism": "interp.proofs.mechanism",
    "ProoflensError": "interp.errors",
    "SequenceTransformer": "interp.models.transformer",
    "Task": "interp.tasks.base",
    "TransformerSpec": "interp.models.spec",
    "conformance": "interp.models.conformance",
    "construct_fixed_memory": "interp.proofs.memory",
    "extract": "interp.store",
    "load_checkpoint": "interp.models.checkpoint",
    "open_factors": "interp.models.factors",
    "register_task": "interp.tasks.catalogue",
    "save_checkpoint": "interp.models.checkpoint",
    "wrap": "interp.models.wrap",
}

__all__ = [
    "ActivationStore",
    "Batch",
    "Certificate",
    "Construction",
    "FixedMemory",
    "Mechanism",
    "ProoflensError",
    "SequenceTransformer",
    "Task",
    "TransformerSpec",
    "conformance",
    "construct_fixed_memory",
    "extract",
    "load_checkpoint",
    "open_factors",
    "register_task",
    "save_checkpoint",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
