"""Models out to Hugging Face's format, for all that have one.

    a pretrained model          its own architecture, weights as they are now, its tokenizer
    a transformer of ours       GPT-2, where GPT-2 can express it (:mod:`interp.models.export`)

The folder is what ``transformers`` and TransformerLens load, and what ``huggingface_hub`` puts on
the hub: ``huggingface_hub.upload_folder(folder_path=…, repo_id=…)``. Nothing is sent from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from interp.errors import ArgumentError
from interp.models.export import export_gpt2
from interp.models.tensor_files import write_tensors
from interp.models.transformer import SequenceTransformer
from interp.output import output_folder
from interp.weights.head_weights.live import RENAMED, live_source

__all__ = ["export"]


def export(model: Any, folder: str | Path, *, bos: int = -1, overwrite: bool = False) -> Path:
    """Write a model as a folder that Hugging Face loads; the folder.

    Args:
        model: What ``pl.load`` gave, a ``TransformerBridge``, or a transformer of ours.
        folder: The folder to write; a failure leaves no half-written one.
        bos: Of a transformer of ours, the token id that begins a row; −1 for none. Others know
            theirs.
        overwrite: Replace an existing folder of this kind.

    Raises:
        ArgumentError: if the model has no such format, naming every option that GPT-2 lacks.
        OutputError: if the folder exists and may not be replaced, or cannot be written.
    """
    if isinstance(model, SequenceTransformer):
        return export_gpt2(model, folder, bos=bos, overwrite=overwrite)
    hugging: Any = getattr(model, "original_model", None)
    if not hasattr(hugging, "config"):
        raise ArgumentError(
            f"model must have a Hugging Face format, got a {type(model).__name__}: keep it with "
            "save_checkpoint, or as it was saved"
        )
    tensors = _tensors(model, hugging)
    tokenizer = getattr(getattr(model, "card", None), "tokenizer", None)
    folder = Path(folder)
    with output_folder(folder, overwrite=overwrite, marker="config.json") as draft:
        write_tensors(tensors, draft / "model.safetensors", {"format": "pt"})
        hugging.config.save_pretrained(draft)
        if tokenizer is not None:
            tokenizer.save_pretrained(draft)
    return folder


def _tensors(model: Any, hugging: Any) -> dict[str, torch.Tensor]:
    """The model's tensors under the names of its architecture, which must all be there."""
    files = live_source(model).files
    saved = RENAMED.get(hugging.config.model_type, {})
    with torch.device("meta"):
        plain = type(hugging)(hugging.config)
    wanted = {saved.get(name, name): one.dtype for name, one in plain.named_parameters()}
    if lacking := sorted(set(wanted) - set(files.names)):
        raise ArgumentError(
            f"model must have every tensor of a {type(hugging).__name__}, got one in which "
            f"{len(lacking)} go by other names, first {lacking[0]!r}: export the files it came from"
        )
    return {name: files.read(name, dtype).contiguous() for name, dtype in wanted.items()}
