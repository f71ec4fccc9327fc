"""A race of three models for wall time: by made-up clocks, by made-up numbers, and in miniature."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from analyses.papers.base import Setting
from analyses.papers.ledger import read_ledger
from analyses.papers.template import gpt2_from_scratch
from analyses.papers.template.fine_tuned_scalars import fine_tuned
from analyses.papers.template.gpt2_from_scratch import (
    Learner,
    check,
    fresh_gpt2,
    from_scratch,
    race,
    verdict_of,
)
from interp.errors import ArgumentError

TINY: dict[str, Any] = {
    **read_ledger()["template-scalars-from-scratch"].profiles["quick"], "steps": 2, "every": 1,
    "batch": 2, "length": 8, "width": 8, "layers": 1, "heads": 2, "larger_width": 12,
    "larger_layers": 2, "larger_heads": 3, "tested": 32,
}  # fmt: skip
TEXT = torch.arange(60) % 20


class Clock:
    """A learner that learns nothing and whose steps take a known time."""

    def __init__(self, cost: float) -> None:
        self.model, self.device = self, "cpu"
        self.cost, self.steps, self.seconds, self.processor = cost, 0, 0.0, 0.0

    def step(self, _: torch.Tensor) -> None:
        self.steps += 1
        self.seconds += self.cost


@pytest.mark.parametrize(
    ("costs", "ends"),
    [((1.0, 2.0, 5.0), (20, 10, 4)), ((3.0, 1.0, 5.0), (4, 10, 2)),
     ((1.0, 1.0, 30.0), (10, 10, 1))],
)  # fmt: skip
def test_all_are_read_at_the_seconds_of_the_scalars(
    costs: Any, ends: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpt2_from_scratch, "perplexity", lambda model, *_: float(model.steps))
    names = ("without", "with a, b", "larger")
    learners: Any = {name: Clock(cost) for name, cost in zip(names, costs, strict=True)}
    table = pd.DataFrame(race(learners, TEXT, TEXT, {"steps": 10, "every": 5, "length": 8}))
    last = table[table["at"] == "end"].set_index("model")
    for name, cost, steps in zip(names, costs, ends, strict=True):
        assert last["step"][name] == last["perplexity"][name] == steps
        assert 0 <= last["seconds"][name] - 10 * costs[1] < cost
    alike = table[(table["model"] == "without") & (table["at"] == 10)]
    assert alike["step"].tolist() == [10]


@pytest.mark.parametrize(
    ("same_steps", "same_seconds", "larger", "status"),
    [((9, 9), (8, 8), (9, 8), "reproduced"), ((9, 9), (8, 7), (9, 9), "partly"),
     ((9, 9), (8, 8), (9, 6), "partly"), ((9, 7), (9, 9), (9, 9), "not reproduced")],
)  # fmt: skip
def test_the_rule_needs_the_same_steps_in_every_seed(
    same_steps: Any, same_seconds: Any, larger: Any, status: str
) -> None:
    rows = []
    for seed in (0, 1):
        found = [("without", 4, same_steps[seed]), ("without", "end", same_seconds[seed]),
                 ("with a, b", "end", 7.5), ("larger", "end", larger[seed])]  # fmt: skip
        rows += [
            {"model": m, "at": at, "perplexity": p, "seed": seed, "step": 4, "seconds": 2.0,
             "processor": 1.0} for m, at, p in found
        ]  # fmt: skip
    verdict = verdict_of(pd.DataFrame(rows), 4)
    assert verdict.status == status
    assert verdict.numbers["gains"]["the same steps"] == [v - 7.5 for v in same_steps]


@pytest.mark.parametrize(("alike", "taken"), [((9, 7, 9), 2), ((9, 9, 9), 3)])
def test_no_seed_is_taken_after_the_one_that_settles_it(
    alike: Any, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raced = []

    def race_of(learners: dict[str, int], *_: Any) -> list[dict[str, Any]]:
        raced.append(learners["without"])
        found = [("without", 2, alike[learners["without"]]), ("without", "end", 8),
                 ("with a, b", "end", 7.5)]  # fmt: skip
        same = {"step": 2, "seconds": 2.0, "processor": 1.0}
        return [{"model": m, "at": at, "perplexity": p, **same} for m, at, p in found]

    monkeypatch.setattr(gpt2_from_scratch, "race", race_of)
    makers: Any = {name: (lambda seed: seed) for name in ("without", "with a, b")}
    verdict = gpt2_from_scratch.race_verdict(
        Setting("quick", (0, 1, 2), TINY, tmp_path), TEXT, TEXT, makers
    )
    assert raced == list(range(taken))
    assert verdict.status == ("reproduced" if taken == 3 else "not reproduced")
    assert verdict.words.endswith("2 of 3 seeds ran: one without a gain settles it.") == (taken < 3)


def test_models_of_a_seed_start_alike_and_read_the_same_windows() -> None:
    plain, scalars = (Learner(fresh_gpt2(TINY, 20, 3), TINY, 3, scalars=s) for s in (False, True))
    pairs = dict(scalars.model.named_parameters())
    for name, weight in plain.model.named_parameters():
        assert torch.equal(weight, pairs[name])
    added = {n: w for n, w in pairs.items() if "identity" in n}
    assert sum(w.numel() for w in added.values()) == 2 * TINY["layers"] * TINY["heads"]
    seen: list[torch.Tensor] = []
    for learner in (plain, scalars):
        learner.model.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        learner.step(TEXT)
    assert torch.equal(*seen)
    assert all((w != 0).all() for w in added.values())
    assert scalars.steps == 1
    assert scalars.seconds > 0
    larger = fresh_gpt2(TINY, 20, 3, "larger_").config
    assert (larger.n_embd, larger.n_layer, larger.n_head) == (12, 2, 3)


def test_options_that_cannot_be_are_refused_together(tmp_path: Path) -> None:
    unfit = {**TINY, "text": str(tmp_path / "none"), "steps": 3, "every": 2, "larger_heads": 5}
    rules = "together with the other.*option text.*be there.*divide steps.*larger_width"
    with pytest.raises(ArgumentError, match=f"(?s){rules}"):
        check(Setting("quick", (0,), unfit, tmp_path))


@pytest.mark.usefixtures("text")
def test_the_claim_runs_on_a_text_and_a_tokenizer(tmp_path: Path) -> None:
    files = {"tokenizer": str(tmp_path), "text": str(tmp_path / "text.py")}
    verdict = from_scratch(Setting("quick", (0, 1), {**TINY, **files}, tmp_path))
    assert verdict.words.startswith("Perplexity on held-out text")
    assert set(verdict.tables["perplexity"]["model"]) == {"without", "with a, b", "larger"}
    assert [len(v) for v in verdict.numbers["gains"].values()] == [2, 2, 2]


@pytest.mark.usefixtures("text")
def test_a_pretrained_model_is_fine_tuned_with_and_without(tmp_path: Path) -> None:
    sizes = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes, **heads))
    model.save_pretrained(tmp_path)
    options = {**TINY, "model": str(tmp_path), "text": str(tmp_path / "text.py")}
    verdict = fine_tuned(Setting("quick", (0, 1), options, tmp_path))
    table = verdict.tables["perplexity"]
    assert set(table["model"]) == {"without", "with a, b"}
    starts = table[table["at"] == 0].pivot(index="seed", columns="model", values="perplexity")
    assert starts["without"].to_numpy() == pytest.approx(starts["with a, b"].to_numpy(), rel=1e-5)
    assert set(verdict.numbers["gains"]) == {"the same steps", "the same seconds"}
    with pytest.raises(ArgumentError, match=r"(?s)text.*be there.*divide steps"):
        fine_tuned(Setting("quick", (0,), {**options, "text": "none", "every": 3}, tmp_path))
    missing = {**options, "model": str(tmp_path / "none")}
    assert fine_tuned(Setting("quick", (0,), missing, tmp_path)).status == "not run"


def test_without_a_shipped_language_model_it_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trained.zoo.stand_in", lambda: None)
    assert from_scratch(Setting("quick", (0,), TINY, tmp_path)).status == "not run"
