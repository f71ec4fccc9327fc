"""Every claim that trains models runs once at a tiny size, and answers in full."""

import json
from pathlib import Path
from typing import Any

import pytest

from analyses.papers.base import Setting, Verdict
from analyses.papers.ledger import read_ledger
from analyses.papers.template import heads, models

LEDGER = {
    name: claim
    for name, claim in read_ledger().items()
    if claim.paper in ("memory", "template", "coupling") and ".pretrained." not in claim.run
}
TINY: dict[str, dict[str, Any]] = {
    "memory": {"steps": 2, "batch": 4, "d_model": 8, "d_head": 2, "ffn": 4, "length": 10},
    "template": {
        "steps": 2, "batch": 4, "symbols": 8, "d_model": 8, "heads": 2, "d_head": 4, "ffn": 8,
        "samples": 40, "tests": 8,
    },
    "coupling": {
        "steps": 2, "batch": 4, "learning_rate": 1e-3, "width": 4, "hidden": 4, "d_model": 8,
    },
}  # fmt: skip
RACED = {"models": ["linear RNN", "transformer"], "transformer": {"steps": 3}}
SMALLER: dict[str, dict[str, Any]] = {
    "memory-depth-language": {"layers": [1, 2], "all_heads": 2, "all_neurons": 8},
    "memory-boolean": {"sizes": [[1, 4], [2, 8]]},
    "memory-more-neurons": {"frequencies": [2], "factors": [1, 4]},
    "memory-more-heads": {"kernels": [], "factors": [1, 4]},
    "memory-few-heads": {"lengths": [2, 4], "widths": [4, 8], "warmup": 1},
    "memory-dot-fixed": {},
    "memory-layernorm": {},
    "memory-heavy-tail": {"heads": [1], "length": 80, "descent": {"steps": 2, "learning_rate": 1}},
    "memory-light-tail": {"heads": [1]},
    "memory-heads-error": {
        "lags": [1, 2], "heads": [1, 2], "descent": {"steps": 3, "learning_rate": 0.05},
    },
    "memory-absolute": {"lags": [1, 2], "heads": [1, 2], "memories": [1, 2]},
    "memory-width-depth": {"rounds": [2], "wide": [12, 2, 16], "deep": [8, 1, 8]},
    "memory-manifold": {"widths": [2, 4], "channels": 4},
    "memory-softmax-dot": {"layers": [1], "slopes": {"steps": 4}},
    "memory-fixed-lag-floor": {"candidates": [2]},
    "memory-gating-cost": {
        "candidates": [2, 3], "neurons": {"gated": [2], "content": [2]}, "largest": 3,
    },
    "memory-concurrent": {"together": [1, 2]},
    "memory-query-scalar": {},
    "memory-rounds": {"rounds": [1, 2], "candidates": 2},
    "template-sample-efficiency": {"rows": [8], "learning_rates": [1e-3, 1e-2]},
    "template-relations": {"rows": 8, "budgets": {}, "sets": [10], "templates": 3},
    "template-zipf": {"rows": 8, "exponents": [1.0]},
    "template-mlp-chance": {"rows": 8, "width": 8, "d_embed": 4},
    "template-copying-width": {"rows": 8, "widths": [8, 12]},
    "template-induction-copying": {"rows": 8, "widths": [8, 12], "length": 4},
    "template-hyperparameters": {"rows": 8, "neurons": 16},
    "template-norms": {"rows": 8},
    "template-authors-setting": {"rows": 8},
    "template-depth": {"rows": 8, "depths": [1, 2]},
    "template-conditioning": {"rows": [8], "pairs": 3, "length": 3},
    "template-kernel-blocks": {"rows": 12, "fewer_symbols": [4]},
    "template-finite-width": {"widths": [8, 16]},
    "template-feature-learning": {"rows": [8, 12]},
    "template-head-specialisation": {"rows": 8},
    "template-unembeddings-collapse": {"rows": 8, "steps": 4, "every": 2, "pretrained": "no/model"},
    "coupling-finite-rank": {"ranks": [2], "steps_from_rank": [-1, 0], "features": 2},
    "coupling-infinite-rank": {"widths": [1, 2], "features": 2},
    "coupling-spectrum": {"rank": 3, "widths": [2, 4], "width": 0, "features": 3},
    "coupling-attention": {"m_h": 2},
    "coupling-order": RACED,
    "coupling-random-kernel": RACED,
    "coupling-permutation": {},
}  # fmt: skip
ELSEWHERE = {
    "memory-ngram-first", "memory-long-lags", "memory-dot-language", "template-gpt2-scalars",
    "template-scalars-from-scratch", "template-pretrained-efficiency",
    "template-scalars-fine-tuned", "coupling-bound", "coupling-images",
}  # fmt: skip
"""Claims that the tests of their own parts run."""


def claim_verdict(name: str, folder: Path) -> Verdict:
    known = LEDGER[name].profiles["quick"]
    tiny = TINY[LEDGER[name].paper]
    options = {**known, **{k: v for k, v in tiny.items() if k in known}, **SMALLER[name]}
    return LEDGER[name].function(Setting("quick", (100, 101), options, folder))


@pytest.mark.parametrize("name", sorted(SMALLER))
def test_claims_answer_in_full(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "FITTED", 0.0)  # two steps fit nothing
    monkeypatch.setattr(heads, "_REASONS", 0.0)
    verdict = claim_verdict(name, tmp_path)
    json.dumps(dict(verdict.numbers), allow_nan=True)
    assert verdict.numbers
    assert verdict.words
    assert verdict.drawings
    assert verdict.key or verdict.status == "not run"
    assert all(len(table) for table in verdict.tables.values())
    if name in ("coupling-finite-rank", "coupling-attention"):
        assert verdict.status == "not reproduced"  # two steps train nothing


@pytest.mark.parametrize("name", ["template-zipf", "template-feature-learning"])
def test_runs_that_do_not_fit_are_no_failure_to_generalise(name: str, tmp_path: Path) -> None:
    assert claim_verdict(name, tmp_path).status == "not run"


def test_every_claim_of_the_ledger_is_tested_and_has_three_seeds_of_its_own() -> None:
    assert set(LEDGER) == set(SMALLER) | ELSEWHERE
    for name in SMALLER:
        quick = LEDGER[name].profiles["quick"]
        assert len(quick["seeds"]) >= 3
        assert not set(quick.get("tuning_seeds", ())) & set(quick["seeds"])
