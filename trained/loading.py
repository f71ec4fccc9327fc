"""``load``: one function for all kinds of models.

    a shipped model's name     listed by ``models()``
    a language model's name    the same, in Hugging Face's GPT-2 format; NAME/step-N for a
                               checkpoint of its training
    a folder                   a checkpoint of this package, or Hugging Face's config.json and
                               safetensors
    a packaged model's name    ``smollm2-135m``, ``gemma3-270m``, if their packages are installed
    a GGUF file                or a folder with one; its weights are dequantised
    a hub id                   the local cache first, then the hub

The result is the model itself, in evaluation mode, with TransformerLens' hooks and methods
(``run_with_cache``, ``run_with_hooks``); everything else that is known about it is ``model.card``
(:class:`~interp.models.card.ModelCard`). Weights are safetensors: nothing is executed on loading.
To read heads of a large checkpoint without building the model, use
:func:`interp.weights.head_weights.head_weights`.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from interp.errors import CheckpointError, ProoflensError, need_path
from interp.models.card import ModelCard
from interp.models.checkpoint import load_checkpoint, read_metadata
from interp.models.placing import check_place, place_model
from interp.models.pretrained import load_pretrained
from interp.store import ActivationStore
from interp.store.pipeline import weights_sha256
from interp.tasks.catalogue import known_task
from interp.weights.head_weights.analysed import describe_model
from interp.weights.head_weights.live import live_source
from trained import zoo
from trained.packaged import PACKAGED, packaged_folder

_OF_MODELS = (
    "config.json",
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.gguf",
    "pytorch_model*",
)


def models() -> list[str]:
    """Return the names of the shipped models and of those that other packages bring
    (:mod:`trained.packaged`), sorted; :func:`load` takes each of them."""
    return sorted((*zoo.names(), *zoo.languages(), *PACKAGED))


def folder_of(name: str | Path) -> str:
    """Return the folder of a shipped or packaged model; any other name is returned unchanged.

    Raises:
        CheckpointError: for a store of activations, and for a name that is nearly a shipped one's.
        MissingDependencyError: for a packaged model that is not installed, saying how to install
            it.
    """
    _no_store(str(name), Path(name))
    if str(name) in PACKAGED:
        return str(packaged_folder(str(name)))
    if str(name) in models():
        return str(zoo.folder(str(name)))
    if not Path(name).exists() and (near := get_close_matches(str(name), models(), 1)):
        raise CheckpointError(f"no model {str(name)!r}: did you mean the shipped {near[0]}?")
    return str(name)


def lasting_name(name: str) -> str:
    """Return a model's name as a store records it: for a folder or file the whole path.

    A store may be opened from other working folders, where a relative path names something else.
    """
    shipped = name in models()
    return str(Path(name).resolve()) if not shipped and Path(name).exists() else name


def load(
    name_or_path: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    adapter: str | Path | None = None,
) -> Any:
    """Load a model by name, folder or hub id, with its hooks and its ``model.card``.

    Args:
        name_or_path: See the module; a shipped name comes before a folder of the same name.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Whether to run the Python code of a repository whose architecture
            transformers does not know. Read it first.
        device: The torch device to put the model on, such as ``cpu`` or ``cuda``.
        dtype: The precision to run the model in, such as ``bfloat16``; by default as it is stored
            (float32 for pretrained models).
        adapter: The folder of a LoRA adapter (safetensors) that is merged into a pretrained model.

    Returns:
        A :class:`~interp.models.transformer.SequenceTransformer`, one of the baselines it is
        compared with, or a ``TransformerBridge`` around a Hugging Face model.

    Raises:
        ArgumentError: for a device that does not exist, or an unknown dtype.
        CheckpointError: if there is no such model (naming near names), or it cannot be loaded:
            damaged, incomplete, only pickled, not finite.
        ConformanceError: if hooks of a pretrained model do not hold what their names say.
    """
    need_path("model", name_or_path)
    name = str(name_or_path)
    place = Path(folder_of(name))
    if (place / "model.json").is_file() and adapter is None:
        check_place(device, dtype)
        model = place_model(load_checkpoint(place), device=device, dtype=dtype)
        model.card = _own_card(name, model, read_metadata(place))
        return model
    _check(name, place)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    options["adapter"] = adapter
    try:
        found = load_pretrained(place, **options, device=device, dtype=dtype)
    except CheckpointError as error:
        raise CheckpointError(
            f"model {name!r} is not a shipped model (see 'prooflens models'), not a checkpoint's "
            f"folder, and no pretrained model: {error}"
        ) from error
    found.model.card = replace(found.card, name=name, about=_about(name))
    return found.model


def model_of(store: ActivationStore, *, device: str = "cpu") -> tuple[Any, str]:
    """Load the model that a store names, in the dtype that it ran in.

    Returns:
        The model and an empty text; or None and the reason, if it cannot be loaded or has other
        weights.
    """
    check_place(device, None)
    about = store.manifest.get("about", {})
    name = about.get("model")
    if not isinstance(name, str):
        return None, "the store names no model"
    try:
        how = {k: about[k] for k in ("dtype", "adapter") if isinstance(about.get(k), str)}
        model = load(name, device=device, **how)
    except ProoflensError as error:
        return None, str(error)
    if weights_sha256(model) != store.manifest["plan"]["model"]["weights_sha256"]:
        return None, f"{name} has other weights now"
    return model, ""


def _about(name: str) -> str:
    """Return what is known of a packaged model, in words; empty for every other name."""
    model = PACKAGED.get(name)
    return "" if model is None else f"{model.about} ({model.quantisation}; {model.licence})"


def _own_card(name: str, model: Any, about: dict[str, Any]) -> ModelCard:
    """Return the card of a checkpoint of this package; a task of an unknown kind is mentioned in
    its notes."""
    task, note = known_task(about.get("task"))
    test, _ = known_task(about.get("test"))
    spec = model.spec
    return ModelCard(
        name=name,
        task=task,
        test=test,
        metrics=about.get("metrics", {}),
        about=about.get("about", ""),
        claim=about.get("claim", ""),
        vocabulary=spec.d_in if spec.input == "tokens" else 0,
        n_ctx=spec.n_ctx,
        bos=int((about.get("task") or {}).get("bos", -1)),
        notes=(note,) if note else (),
        analysed=describe_model(live_source(model)),
    )


def _no_store(name: str, place: Path) -> None:
    if (place / "manifest.json").is_file():
        raise CheckpointError(
            f"{name} is a store of activations and not a model: 'prooflens store STORE' says which "
            "model it is of"
        )


def _check(name: str, place: Path) -> None:
    """Raise an error that says what may be meant, if a name or folder is nearly one that can be
    loaded."""
    if (place / "store" / "manifest.json").is_file():
        raise CheckpointError(f"{name} holds no model: did you mean the store {place / 'store'}?")
    if place.is_dir() and not any(any(place.glob(pattern)) for pattern in _OF_MODELS):
        raise CheckpointError(
            f"{name} is neither a store (no manifest.json) nor a checkpoint (no model.json, "
            "config.json or weights): give a folder that 'prooflens extract' or 'prooflens train' "
            "wrote"
        )
