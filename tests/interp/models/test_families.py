"""Families of pretrained models, tiny and random: run and ablated like transformers' own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from analyses.benchmarks.family_cases import CASES, write
from analyses.benchmarks.family_cells import FamilyModel, ablation, logits, patterns
from interp.hooks.conformance import conformance
from interp.models.pretrained import load_pretrained

transformers = pytest.importorskip("transformers")

CHANGED: dict[str, dict[str, Any]] = {
    "OPT": {}, "GPT-Neo": {}, "GPT-J": {}, "GPT-NeoX, parallel": {}, "OLMo": {"clip_qkv": None},
    "OLMo 2": {}, "Phi": {"qk_layernorm": False}, "Phi 3": {}, "StableLM": {}, "Falcon 7B": {},
    "BLOOM": {}, "GPT-OSS": {}, "Gemma 2": {},
}  # fmt: skip
"""Family → what is left out of its case because it is refused."""


def write_model(family: str, folder: Path) -> Any:
    (case,) = (case for case in CASES if case.name == family)
    write(replace(case, options={**case.options, **CHANGED[family]}), folder)
    kind = getattr(transformers, case.model)
    return kind.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.mark.parametrize("family", CHANGED)
@pytest.mark.filterwarnings("ignore:A forward hook edited")
def test_a_family_runs_and_is_ablated_like_transformers_own(family: str, tmp_path: Path) -> None:
    reference = write_model(family, tmp_path)
    of = FamilyModel(tmp_path, load_pretrained(tmp_path).model, reference, tmp_path)
    for ask in (logits, patterns, ablation):
        assert ask(of) < 1e-5, ask.__name__


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("OPT", "hook_attn_scores carries the pattern in this wrapping"),
        ("GPT-J", "hook_attn_scores carries the pattern in this wrapping"),
        ("GPT-OSS", "attention sinks"),
    ],
)
def test_what_a_wrapping_does_otherwise_is_a_note(family: str, told: str, tmp_path: Path) -> None:
    write_model(family, tmp_path)
    found = load_pretrained(tmp_path)
    assert any(told in note for note in found.notes), found.notes
    tokens = torch.randint(3, 20, (2, 6))
    failed = {c.relation for c in conformance(found.model, tokens, changes=False).failures}
    assert failed  # the check itself still says so
