"""GGUF files: dequantised once, and stored as a folder of config.json, safetensors and tokenizer.

The package ``gguf`` reads the file and transformers names its tensors. The folder is in a cache
(the environment's ``PROOFLENS_CACHE``, else ``~/.cache/prooflens``) under the SHA-256 of the file's
bytes and the version of transformers. From then on it is a checkpoint like any other, and all
numbers are those of the dequantised weights. Two things are checked:

    header      each entry of the architecture is one that transformers reads, or it states what the
                converted configuration has anyway (``_STATED``)
    tensors     the file holds as many numbers as the model, and all of the model's come from it

If a check fails, transformers would silently run another model, so the file is refused. That
transformers converts the values correctly is not checked. Whoever quantised the file may have
changed the model.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from importlib.metadata import version
from importlib.util import find_spec
from math import isclose
from pathlib import Path
from typing import Any

import torch

from interp.errors import CheckpointError, MissingDependencyError
from interp.output import output_folder
from interp.reading import regular
from interp.weights.head_weights.calling_transformers import one_line, quiet_transformers

SUFFIX = ".gguf"
ORIGIN = "gguf.json"
"""Name of the file in a converted folder that says which GGUF file it was made from."""

_MARKER = ".prooflens-gguf"
_BLOCK = 1 << 20
_READ = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "phi3", "starcoder2",
         "stablelm", "nemotron")  # fmt: skip
"""GGUF architectures that are read. For each of them it was checked that a float32 file gives the
same numbers as the model it was made from."""


def _head(config: Any) -> int:
    return int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


def _rotary(config: Any) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


_EPSILONS = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
_STATED: Mapping[str, Callable[[Any], Any]] = {
    "attention.key_length": _head,
    "attention.value_length": _head,
    "attention.layer_norm_epsilon": lambda c: next(
        getattr(c, n) for n in _EPSILONS if n in vars(c)
    ),
    "rope.dimension_count": lambda c: _head(c) * _rotary(c).get("partial_rotary_factor", 1),
    "rope.freq_base": lambda c: _rotary(c).get("rope_theta"),
    "attention.sliding_window": lambda c: c.sliding_window,
    "attn_logit_softcapping": lambda c: c.attn_logit_softcapping,
    "final_logit_softcapping": lambda c: c.final_logit_softcapping,
    "use_parallel_residual": lambda c: c.use_parallel_residual,
    "vocab_size": lambda c: c.vocab_size,
}
"""GGUF header entries that transformers ignores → a function from its converted configuration to
the value used there. A file is refused if the two values differ."""


def convert_gguf(parts: Sequence[Path], name: str, *, sha256: str = "") -> Path:
    """Return the cache folder of a GGUF file, converting the file if it is not there yet.

    Args:
        parts: The file, or its pieces in order.
        name: The name of the file in error messages.
        sha256: The digest that the file must have; empty for any.

    Raises:
        MissingDependencyError: if the package ``gguf`` is not installed.
        CheckpointError: if the file is damaged, or holds something that is not understood.
        OutputError: if the cache cannot be written.
    """
    digest = hashlib.sha256()
    for part in parts:
        regular(part, "weights", CheckpointError)
        with part.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    found = digest.hexdigest()
    if sha256 and found != sha256:
        raise CheckpointError(f"{name} has the SHA-256 {found}, not {sha256}: install it again")
    target = _cache() / "gguf" / f"{found}-transformers-{version('transformers')}"
    if (target / ORIGIN).is_file():
        return target
    if find_spec("gguf") is None:
        raise MissingDependencyError(f"{name} needs gguf: pip install 'prooflens[gguf]'")
    with output_folder(target, overwrite=True, marker=_MARKER, inputs=parts) as draft:
        file = parts[0]
        if len(parts) > 1:
            file = draft / "whole.gguf"
            with file.open("wb") as whole:
                for part in parts:
                    with part.open("rb") as stream:
                        shutil.copyfileobj(stream, whole, _BLOCK)
        with one_line(f"{name} cannot be read as GGUF"):
            _convert(file, draft, name)
        if len(parts) > 1:
            file.unlink()
    return target


def origin(folder: Path) -> dict[str, Any]:
    """Return what a converted folder was made from: ``quantisation``, ``formats``, ``licence`` and
    more.

    Empty for every other folder.
    """
    file = folder / ORIGIN
    there = file.is_file() and (folder / _MARKER).is_file()
    return dict(json.loads(file.read_text())) if there else {}


def _cache() -> Path:
    return Path(os.environ.get("PROOFLENS_CACHE") or Path.home() / ".cache" / "prooflens")


def _convert(file: Path, folder: Path, name: str) -> None:
    from gguf import GGUFReader, LlamaFileType

    reader = GGUFReader(file)
    header = {key: field.contents() for key, field in reader.fields.items()}
    kind = str(header.get("general.architecture"))
    if kind not in _READ:
        raise CheckpointError(f"its architecture {kind!r} is none of {', '.join(_READ)}")
    numbers = Counter[str]()
    for tensor in reader.tensors:
        numbers[tensor.tensor_type.name] += int(tensor.n_elements)
    made = _model(file)
    _check_header(header, kind, made.config)
    held, run = numbers.total(), sum(weight.numel() for weight in made.parameters())
    if held != run:
        raise CheckpointError(
            f"it holds {held:,} numbers and the {type(made).__name__} that transformers makes of "
            f"it {run:,}: some of its tensors are not understood"
        )
    with quiet_transformers():
        made.save_pretrained(folder)
        if "tokenizer.ggml.tokens" in header:
            from transformers import AutoTokenizer

            how: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
            AutoTokenizer.from_pretrained(file.parent, **how).save_pretrained(folder)
    stated = header.get("general.file_type")
    told = {
        "file": name,
        "quantisation": "" if stated is None else LlamaFileType(stated).name.split("_", 1)[-1],
        "formats": [form for form, _ in numbers.most_common()],
        "licence": str(header.get("general.license", "")),
    }
    (folder / ORIGIN).write_text(json.dumps(told, indent=1) + "\n")


def _model(file: Path) -> Any:
    """Load a GGUF file with transformers as a model in float32 that is not marked as quantised."""
    from transformers import AutoModelForCausalLM

    how: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    how |= {"dtype": torch.float32, "output_loading_info": True}
    open_file: Any = AutoModelForCausalLM.from_pretrained
    with quiet_transformers(), redirect_stderr(io.StringIO()):  # a bar that asks no switch
        made, report = open_file(file.parent, **how)
    if lacking := sorted(report["missing_keys"]):
        raise CheckpointError(f"it lacks {len(lacking)} tensors of a model, first {lacking[0]!r}")
    made.hf_quantizer, made.is_quantized = None, False
    if hasattr(made.config, "quantization_config"):
        del made.config.quantization_config
    return made


def _check_header(header: Mapping[str, Any], kind: str, config: Any) -> None:
    """Refuse a header entry that contradicts the converted configuration."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_TO_TRANSFORMERS_MAPPING

    known: Any = GGUF_TO_TRANSFORMERS_MAPPING["config"]
    read = {entry for entry, field in known[kind].items() if field}
    scale = getattr(config, "query_pre_attn_scalar", None)
    if scale is not None and scale != _head(config):  # Gemma's of 27 billion, of whom it is 144
        raise CheckpointError(
            f"its heads have {_head(config)} dimensions, and transformers divides their scores by "
            f"√{scale}, as no Gemma of that size does"
        )
    for key, value in header.items():
        entry = key.removeprefix(f"{kind}.")
        if entry == key or entry in read or entry == "context_length":
            continue
        if entry not in _STATED:
            raise CheckpointError(
                f"its header says {key} = {value}, which transformers passes over"
            )
        has = _STATED[entry](config)
        if not (has == value or (has is not None and isclose(has, value, rel_tol=1e-5))):
            raise CheckpointError(
                f"its header says {key} = {value}, and transformers makes it {has} without a word"
            )
