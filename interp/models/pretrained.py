"""Load pretrained models to run with hooks: from a local folder, a hub id, or a checkpoint of ours.

    files      found as for weight-only inspection: safetensors only, every shard there, no file
               truncated; of a hub repository configuration, weights and tokenizer alone
    weights    every parameter comes from the files (none is left at a random initial value), and
               all are finite
    model      transformers' own class, wrapped by TransformerLens' ``TransformerBridge``
    hooks      checked on random rows (:mod:`interp.hooks.conformance`): a hook must carry what its
               name says, or the model is refused; if *changing* a hook has another effect than its
               name promises, this is listed in ``notes``

A tokenizer is loaded if there is one, and nothing here needs it. Code in a repository runs only
with ``trust_remote_code``. Conformance shows that hooks agree with each other on these rows; it
does not show that the weights are those of the published model.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from interp.errors import CheckpointError
from interp.hooks.conformance import ConformanceReport, conformance
from interp.hooks.site import Site
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.models.card import ModelCard
from interp.models.placing import check_place, place_model
from interp.models.refusals import refusal, stated_class
from interp.weights.head_weights.adapter import LoraAdapter, merge, read_adapter
from interp.weights.head_weights.analysed import describe_model
from interp.weights.head_weights.architectures import ARCHITECTURES
from interp.weights.head_weights.calling_transformers import one_line, quiet_transformers
from interp.weights.head_weights.config import check_sizes
from interp.weights.head_weights.gguf_files import SUFFIX
from interp.weights.head_weights.hub import fetch_if_there
from interp.weights.head_weights.layouts import SINKS, check_own_keys
from interp.weights.head_weights.live import live_source
from interp.weights.head_weights.source import TensorSource, find_source

_ROW = 8  # positions of the row that hooks are checked on
_SAME = 5e-4  # share of the largest logit by which a wrapped model's may differ: rounding
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_TOKENIZER_FILES = (
    *_VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_SCORES = "pattern = softmax(scores)"
_ABLATED = ("hook_z", "hook_result", "hook_mlp_out")
"""Hooks that ablations patch if a model cannot be run from a middle layer on."""
_CONTEXTS = ("n_positions", "max_position_embeddings", "n_ctx", "max_sequence_length", "seq_length")


@dataclass(frozen=True)
class Pretrained(ModelCard):
    """A loaded model with its card.

    Attributes:
        model: The hooked model; it fires TransformerLens' hooks and takes token ids ``[batch,
            pos]``.
    """

    model: Any = None

    @property
    def card(self) -> ModelCard:
        """The card without the model, as it is attached to a model."""
        return ModelCard(**{name: value for name, value in vars(self).items() if name != "model"})


def load_pretrained(
    path_or_id: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    adapter: str | Path | None = None,
) -> Pretrained:
    """Load a model and check its weights and hooks.

    Args:
        path_or_id: A checkpoint of ours, a Hugging Face folder, a GGUF file or a folder with one,
            or a hub id (the local cache first, then the hub).
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Whether to run the Python code of a repository whose architecture
            transformers does not know. Read the code first.
        device: The torch device to put the model on, such as ``cpu`` or ``cuda``.
        dtype: The precision that it runs in (:mod:`interp.models.placing`); by default single
            precision, or, for a checkpoint of ours or an added architecture, that of its weights.
        adapter: Folder of a LoRA adapter to merge into the weights
            (:mod:`interp.weights.head_weights.adapter`).

    Raises:
        ArgumentError: if the device does not exist, or the dtype is not known.
        CheckpointError: if the model is missing, only pickled, damaged, incomplete, not finite,
            needs code that was not allowed, or has an architecture that cannot be wrapped.
        ConformanceError: if hooks do not carry what their names say.
    """
    check_place(device, dtype)
    lora = None if adapter is None else read_adapter(adapter)
    found = _load_model(str(path_or_id), revision, trust_remote_code, device, dtype, lora)
    place_model(found.model, device=device, dtype=dtype)
    return found


def _load_model(
    name: str,
    revision: str | None,
    trust_remote_code: bool,
    device: str,
    dtype: str | None,
    adapter: LoraAdapter | None,
) -> Pretrained:
    if (Path(name) / "model.json").is_file():
        if adapter is not None:
            raise CheckpointError(f"{name} is no model of transformers: it takes no adapter")
        return _own(name, device, dtype)
    if Path(name).is_file() and Path(name).suffix != SUFFIX:
        raise CheckpointError(
            f"{name} is a file: a model to run needs its folder with config.json, or is a GGUF file"
        )
    source = find_source(name, revision=revision, whole=True)
    added = ARCHITECTURES.get(str(source.config.get("model_type")))
    if added and added.load and adapter is None:
        return _check_hooks(_load_plugin(source, added.load, dtype))
    _check_config(source, trust_remote_code)
    options = {"revision": revision, "trust_remote_code": trust_remote_code}
    options["local_files_only"] = not trust_remote_code
    place = str(source.folder) if Path(name).exists() else name
    hugging = _weights(name, place, source.config, options)
    if adapter is not None:
        merge(hugging, adapter)
        source = replace(source, merged=adapter.summary)
    tokenizer = _tokenizer(name, place, options)
    config = hugging.config.get_text_config()
    bos = _bos(config, tokenizer)
    own = copy.deepcopy(tokenizer)  # the bridge gives the one it holds a BOS of its own
    n_ctx = next((int(v) for n in _CONTEXTS if (v := getattr(config, n, None))), 1024)
    tokens = _row(int(config.vocab_size), n_ctx).to(device)
    model = _bridge(name, _with_gains(hugging).to(device), own, tokens)
    found = Pretrained(
        name=name,
        model=model,
        family=str(source.config.get("model_type", "unknown")),
        vocabulary=int(config.vocab_size),
        n_ctx=n_ctx,
        bos=bos,
        tokenizer=tokenizer,
        analysed=describe_model(source, run_in=dtype or "float32"),
    )
    return _check_hooks(found)


def _own(name: str, device: str, dtype: str | None) -> Pretrained:
    from interp.models.checkpoint import load_checkpoint, read_metadata

    model, about = load_checkpoint(name).to(device), read_metadata(name)
    spec = model.spec
    if spec.input != "tokens":
        raise CheckpointError(f"{name} takes real values: only models of tokens can be inspected")
    bos = (about.get("task") or {}).get("bos", -1)
    told = describe_model(live_source(model), run_in=dtype or "")
    sizes: dict[str, Any] = {"vocabulary": spec.d_in, "n_ctx": spec.n_ctx, "bos": int(bos)}
    return Pretrained(name, **sizes, analysed=told, model=model)


def _load_plugin(
    source: TensorSource, load: Callable[[Path], Any], dtype: str | None
) -> Pretrained:
    """Load a model of an architecture that an installed package adds."""
    config = source.config
    check_sizes(source.name, config)
    if not isinstance(config.get("vocab_size"), int):
        raise CheckpointError(
            f"{source.name}: config.json must give vocab_size as a whole number, got "
            f"{config.get('vocab_size')!r}: it says how many token ids there are"
        )
    if not Path(source.name).is_dir():
        raise CheckpointError(f"{source.name} must be a folder for an architecture that was added")
    with one_line(f"{source.name} cannot be loaded"):
        model = load(Path(source.name)).eval()
    vocabulary = config["vocab_size"]
    n_ctx = next((int(v) for n in _CONTEXTS if (v := config.get(n))), 1024)
    bos = config.get("bos_token_id")
    bos = bos if isinstance(bos, int) and 0 <= bos < vocabulary else -1
    told = describe_model(source, run_in=dtype or "")
    sizes: dict[str, Any] = {"vocabulary": vocabulary, "n_ctx": n_ctx, "bos": bos}
    kind = str(config["model_type"])
    return Pretrained(source.name, kind, **sizes, analysed=told, model=model)


def _check_config(source: TensorSource, trust_remote_code: bool) -> None:
    """Check that there is a configuration whose architecture transformers knows, or that its code
    may run."""
    from transformers import CONFIG_MAPPING

    kind = source.config.get("model_type")
    if not source.config:
        raise CheckpointError(f"{source.name} has no config.json: its architecture is unknown")
    if words := refusal(source.config):
        raise CheckpointError(f"{source.name} {words}")
    check_sizes(source.name, source.config)
    check_own_keys(source.config)
    if kind in CONFIG_MAPPING or trust_remote_code:
        return
    if source.config.get("auto_map"):
        raise CheckpointError(
            f"{source.name} brings Python code of its own for its architecture {kind!r}: read it, "
            "then allow it with trust_remote_code (--trust-remote-code)"
        )
    raise CheckpointError(
        f"{source.name}: transformers does not know the architecture {kind!r}: put hooks on the "
        "module yourself (pl.wrap), add an Architecture (docs/howto-extend.md), or read its "
        "weights alone (prooflens weights --mapping)"
    )


def _weights(name: str, place: str, config: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Load transformers' model with every parameter from the files, finite, in float32."""
    with one_line(f"{name} cannot be loaded"), quiet_transformers():
        loaded: Any = _class_of(config).from_pretrained(
            place,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
            **options,
        )
    model, report = loaded
    if getattr(model, "_hf_peft_config_loaded", False):
        raise CheckpointError(
            f"{name} holds an adapter, which transformers loads by itself where peft is installed: "
            "move it to a folder of its own, and name it as the adapter to merge it"
        )
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise CheckpointError(
            f"{name} lacks {len(lacking)} of the model's tensors, first {lacking[0]!r}: it would "
            "run on random numbers there (weights alone: prooflens weights)"
        )
    unread = sorted(report["unexpected_keys"])
    if unread:
        raise CheckpointError(
            f"{name} holds {len(unread)} tensors that {type(model).__name__} has no place for by "
            f"its config.json, first {unread[0]!r}: the model would run without them; correct the "
            "configuration, or remove them"
        )
    for parameter, tensor in model.named_parameters():
        if bad := int((~torch.isfinite(tensor)).sum()):
            raise CheckpointError(
                f"{parameter!r} of {name} has {bad} values of {tensor.numel()} that are not finite"
            )
    return model.eval()


def _class_of(config: Mapping[str, Any]) -> Any:
    """Return transformers' class for a configuration; with other inputs beside text, the stated
    one."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    stated = stated_class(config)
    if stated in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values():
        return getattr(transformers, stated)
    return transformers.AutoModelForCausalLM


def _tokenizer(name: str, place: str, options: Mapping[str, Any]) -> Any:
    """Load the tokenizer; None if the files hold none (transformers would make an empty one)."""
    from transformers import AutoTokenizer

    folder = Path(place)
    if not folder.is_dir():
        found = fetch_if_there(name, _TOKENIZER_FILES, options["revision"])
    else:
        found = [file for file in _TOKENIZER_FILES if (folder / file).is_file()]
    if not set(found) & set(_VOCABULARIES):
        return None
    with one_line(f"the tokenizer of {name} cannot be loaded"), quiet_transformers():
        return AutoTokenizer.from_pretrained(place, **options)


def _bridge(name: str, hugging: Any, tokenizer: Any, tokens: torch.Tensor) -> HookedModel:
    """Return the model with hooks; refuse it if its logits differ from transformers'."""
    from interp.hooks.transformer_lens_adapter import TransformerBridge, wrapped_architectures

    if tokenizer is None:
        tokenizer = _stand_in(int(hugging.config.get_text_config().vocab_size))
    if type(hugging).__name__ not in wrapped_architectures():
        raise CheckpointError(
            f"{name} is of {type(hugging).__name__}, which TransformerLens does not wrap (weights "
            "alone: prooflens weights; a module of your own: pl.wrap)"
        )
    cannot = f"{name} cannot be wrapped by TransformerBridge"
    with one_line(cannot), quiet_transformers():
        with torch.no_grad():
            expected = hugging(input_ids=tokens, use_cache=False).logits
        bridge: Any = TransformerBridge.boot_transformers(
            name, hf_model=hugging, tokenizer=tokenizer, device=str(tokens.device)
        ).eval()
        with torch.no_grad():
            gap = (bridge(tokens) - expected).abs().max()
        off = float(gap / expected.abs().max().clamp_min(1e-30))
    if not off <= _SAME:
        raise CheckpointError(f"{cannot}: its logits would be off by {off:.2g} of the largest")
    model: HookedModel = bridge
    return model


def _with_gains(hugging: Any) -> Any:
    """Give norms without weights a gain of 1, because the bridge's formulas read one.

    The norms of OLMo and NanoChat have none; their own forward passes never read the added gain.
    """
    for module in hugging.modules():
        if type(module).__name__.endswith("Norm") and not hasattr(module, "weight"):
            size = getattr(module, "normalized_shape", (1,))
            module.register_buffer("weight", torch.ones(size), persistent=False)
    return hugging


def _stand_in(vocabulary: int) -> Any:
    """Make a placeholder tokenizer whose words are the ids; without one the bridge looks for one
    and fails."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {str(i): i for i in range(vocabulary)}
    special = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "0")  # a BOS would be reloaded
    model = Tokenizer(WordLevel(words, unk_token=special["unk_token"]))
    return PreTrainedTokenizerFast(tokenizer_object=model, **special)


def _row(vocabulary: int, n_ctx: int) -> torch.Tensor:
    """Draw random tokens for checking a model, ``[row, pos]``."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocabulary, (2, min(_ROW, n_ctx)), generator=generator)


def _check_hooks(found: Pretrained) -> Pretrained:
    """Return the model with notes on its hooks; refuse it if hooks do not carry what their names
    say."""
    tokens = _row(found.vocabulary, found.n_ctx)
    tokens = tokens.to(next(iter(found.model.parameters())).device)
    with warnings.catch_warnings():  # changing a norm's hooks is what is being tried
        for words in ("A forward hook edited hook_scale", r"A hook on \S+ returned a modified"):
            warnings.filterwarnings("ignore", message=words)
        with one_line(f"{found.name} cannot be wrapped by TransformerBridge"):
            read = conformance(found.model, tokens, changes=False)
            known, notes = _expected_failures(found, tokens) if read.failures else (set(), [])
        unread = [check for check in read.failures if check.relation not in known]
        ConformanceReport(tuple(unread)).raise_if_failed(found.name)
        with one_line(f"{found.name} cannot be wrapped by TransformerBridge"):
            changed = conformance(found.model, tokens).failures
    kinds = sorted({check.relation for check in changed} - known)
    notes += [_consequence(kind) for kind in kinds if not kind.startswith("pattern = ")]
    if found.tokenizer is None:
        notes.append("no tokenizer: tests on text are left out, tests on random tokens run")
    if found.bos < 0:
        notes.append("no BOS token: random rows begin with a random token")
    return replace(found, notes=tuple(notes))


def _expected_failures(found: Pretrained, tokens: torch.Tensor) -> tuple[set[str], list[str]]:
    """Return relations that this kind of model or its wrapping breaks, and notes on them for a
    reader.

    TransformerLens fires the pattern under the name of the scores in some wrappings; a model with
    attention sinks gives a share of its attention to no token. Neither is accepted by name alone:
    the hook must carry the pattern itself, and the shares must sum to at most 1.
    """
    with torch.no_grad():
        values = dict(found.model.run_with_cache(tokens)[1].items())
    kinds, layers = ("attn_scores", "pattern"), range(int(found.model.cfg.n_layers))
    pairs = [tuple(values.get(Site(at, kind).name) for kind in kinds) for at in layers]
    known, notes = set(), []
    if all(s is not None and p is not None and torch.equal(s, p) for s, p in pairs):
        known.add(_SCORES)
        notes.append("attn.hook_attn_scores carries the pattern in this wrapping, not the scores")
    sums = [pattern.sum(-1) for _, pattern in pairs if pattern is not None]
    if _has_sinks(found.model) and all(bool((s <= 1 + 1e-5).all()) for s in sums):
        known |= {_SCORES, "pattern rows sum to 1"}
        notes.append(SINKS)
    return known, notes


def _has_sinks(model: Any) -> bool:
    named = getattr(model, "original_model", model).named_parameters()
    return any(name.endswith(".sinks") for name, _ in named)


def _consequence(relation: str) -> str:
    """Return a note on what a relation that fails when a hook is changed means for the
    measurements."""
    what, _, changed = relation.removesuffix(" changes").partition(", when ")
    told = f"patching {changed or 'hooks'} yourself: {what} does not hold then in this wrapping; "
    if not changed or changed in _ABLATED:
        return told + "ablations that run one forward pass a component patch it: do not trust them"
    return told + "ablations do not patch it, so their numbers stand"


def _bos(config: Any, tokenizer: Any) -> int:
    """Return the token that rows begin with: the tokenizer's, if there is one; −1 if it has none.

    Some configurations name a BOS token that their tokenizer never writes (Qwen's do).
    """
    stated = config if tokenizer is None else tokenizer
    bos: Any = getattr(stated, "bos_token_id", None)
    known = isinstance(bos, int) and 0 <= bos < int(config.vocab_size)
    return int(bos) if known else -1
