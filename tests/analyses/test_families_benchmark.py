"""The page of families is its kept table; reasons of refusals are true of the models themselves."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prooflens as pl
from analyses.benchmarks.families import REASONS, measure_case, page_of
from analyses.benchmarks.family_cases import CASES, FamilyCase, write
from analyses.benchmarks.family_cells import OPERATIONS
from interp.models.refusals import REFUSALS, refusal

transformers = pytest.importorskip("transformers")

DOCS = Path(__file__).parents[2] / "docs"
KEPT = json.loads((DOCS / "data" / "families.json").read_text())
NAMED = {case.name: case for case in CASES}
CONFIGURED = [case for case in CASES if case.change is None and case.group != "files"]
"""The cases that are decided by what their config says."""
AGAIN = ("GPT-2", "Gemma 2", "GPT-OSS", "BERT", "Jamba", "LoRA alone", "LoRA merged",
         "GGUF, 8 bits")  # fmt: skip
MIXERS = re.compile("Mamba|Mixer|Recurrent|ShortConv|GatedDelta|RwkvSelf|Linear.*Attention$")
LISTS = re.compile(r"(encoder|decoder)\.(?:layers|block)\.")
TRUE = {"encoder-decoder", "encoder", "not attention", "latent attention", "norms after"}
"""The reasons that can be seen in a model that runs."""


def test_the_page_is_the_kept_table() -> None:
    assert (DOCS / "families.md").read_text() == page_of(KEPT)


def test_every_case_is_kept_and_no_cell_is_wrong() -> None:
    assert [*KEPT] == [*NAMED]
    for name, row in KEPT.items():
        assert [*row] == [*OPERATIONS]
        for cell in row.values():
            assert cell == "right" or cell.removeprefix("refused: ") in REASONS, (name, cell)
    assert sum("right" in row.values() for row in KEPT.values()) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.filterwarnings("ignore")
def test_families_are_measured_as_they_are_kept(name: str) -> None:
    if "GGUF" in name:
        pytest.importorskip("gguf", reason="needs the extra: pip install 'prooflens[gguf]'")
    assert dict(measure_case(NAMED[name])) == KEPT[name]


def random_model(case: FamilyCase) -> Any:
    """The model as transformers has it, with random numbers everywhere."""
    kind = getattr(transformers, case.model)
    torch.manual_seed(0)
    model = kind(kind.config_class(**case.options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
            else:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


@torch.no_grad()
def facts(model: Any) -> set[str]:
    """What is seen in a model: from its modules, and from what it does on two rows."""
    names = [name for name, _ in model.named_parameters()]
    sides = {part for name in names for part in LISTS.findall(name)}
    if sides == {"encoder", "decoder"}:
        return {"encoder-decoder"}
    found = set()
    if any("kv_a_proj" in name for name in names):
        found.add("latent attention")
    if any(MIXERS.search(type(module).__name__) for module in model.modules()):
        return found | {"not attention"}
    tokens = torch.randint(4, 58, (2, 9), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[:, -1] = (other[:, -1] + 7) % 50 + 4
    first, second = (model(input_ids=one)[0][:, :5] for one in (tokens, other))
    if not torch.allclose(first, second, atol=1e-5):
        found.add("encoder")
    if ends_in_norms(model, tokens):
        found.add("norms after")
    return found


def ends_in_norms(model: Any, tokens: Tensor) -> bool:
    """Whether a layer gives what the norm in it gave last."""
    last: list[tuple[str, Tensor]] = []
    seen: list[bool] = []

    def norm(module: nn.Module, args: Any, out: Any) -> None:
        last.append((type(module).__name__, out))

    def layer(module: nn.Module, args: Any, out: Any) -> None:
        given = out[0] if isinstance(out, tuple | list) else out
        if last and isinstance(given, Tensor) and last[-1][1].shape == given.shape:
            seen.append(torch.equal(last[-1][1], given))

    handles = []
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("Norm"):
            handles.append(module.register_forward_hook(norm))
        elif kind.endswith(("Layer", "Block")) and "Attention" not in kind:
            handles.append(module.register_forward_hook(layer))
    model(input_ids=tokens)
    for handle in handles:
        handle.remove()
    return any(seen)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CONFIGURED, ids=lambda case: case.name)
def test_a_reason_by_config_is_given_where_it_is_true_and_nowhere_else(case: FamilyCase) -> None:
    """Also where the same files are named in another way, without ``architectures``."""
    by_config = {one.name for one in REFUSALS} | {"encoder, norms after"}
    model = random_model(case)
    config = model.config.to_dict()
    words = refusal({**config, "architectures": [case.model]})
    named = [name for name, pattern in REASONS.items() if re.search(pattern, words)]
    assert named == ([case.reason] if case.reason in by_config else [])
    if case.reason in ("not attention", "norms after", "latent attention"):
        assert refusal({**config, "architectures": None}).startswith("is a")
    if case.group not in ("decoders", "no decoders") or case.name == "Whisper":
        return  # decided by its head or its other inputs
    seen = facts(model)
    if case.reason == "encoder, norms after":
        assert seen == {"encoder", "norms after"}
    elif case.reason in TRUE:
        assert case.reason in seen
    else:
        assert not seen


def test_an_adapter_alone_names_its_base_model_at_every_door(tmp_path: Path) -> None:
    write(NAMED["LoRA alone"], tmp_path / "m")
    for door in (pl.load, pl.head_weights):
        with pytest.raises(
            pl.errors.ProoflensError, match="whose base model is someone/a-base-model"
        ):
            door(tmp_path / "m")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Llama, bfloat16", "LlamaForCausalLM; float32 from bfloat16; unembedding of its own;"),
        ("Llama, two matrices called tied", "of its own, though it is called tied"),
        ("Gemma 2", "embeddings × √d_model; scores capped at 2; logits capped at 3"),
        ("LLaVA", r"left out: multi_modal_projector \(4 tensors\), vision_tower"),
    ],
)
def test_what_is_analysed_is_said(name: str, words: str, tmp_path: Path) -> None:
    write(NAMED[name], tmp_path / "m")
    model = pl.load(tmp_path / "m")
    assert re.search(words, model.card.analysed), model.card.analysed
    placed = pl.load(tmp_path / "m", dtype="float16").card.analysed
    assert placed.startswith(model.card.analysed.partition(";")[0] + "; float16")
