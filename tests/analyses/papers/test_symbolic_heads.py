"""The rows of the claim on three kinds of heads, and heads that were built to be of one kind."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from analyses.papers.base import Setting
from analyses.papers.pretrained import symbolic_heads
from analyses.papers.pretrained.symbolic_heads import kinds_of, mean_layers, rule_rows, run
from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

BOS, COMMA, LINE = 0, 1, 2
PAIR = rule_rows(torch.arange(3, 60), rows=6, examples=3, bos=BOS, comma=COMMA, line=LINE, seed=0)


def lines(row: torch.Tensor) -> tuple[list[list[int]], list[int]]:
    """The examples of a row, and its query, read by hand."""
    found = row.tolist()
    assert found[0] == BOS
    examples = [found[1 + 6 * i : 7 + 6 * i] for i in range(3)]
    for one in examples:
        assert (one[1], one[3], one[5]) == (COMMA, COMMA, LINE)
    query = found[19:]
    assert (len(query), query[1], query[3]) == (4, COMMA, COMMA)
    return [[one[0], one[2], one[4]] for one in examples], [query[0], query[2]]


def rule_of(examples: list[list[int]]) -> int:
    """Which of the first two tokens every example repeats."""
    (rule,) = {one[:2].index(one[2]) for one in examples}
    return rule


def test_rows_differ_in_what_their_kind_says() -> None:
    for i in range(6):
        own, query = lines(PAIR.batch.inputs[i])
        assert rule_of(own) == i % 2
        assert int(PAIR.right[i]) == query[i % 2]
        assert int(PAIR.batch.targets[i, -1]) == query[1 - i % 2]
        other, same_query = lines(PAIR.others["abstraction"][i])
        assert (rule_of(other), same_query) == (1 - i % 2, query)
        assert [one[2] for one in other] == [one[2] for one in own]
        assert [one[:2] for one in other] == [one[1::-1] for one in own]
        strange, strange_query = lines(PAIR.others["induction"][i])
        assert rule_of(strange) == 1 - i % 2
        words = [{one for line in found for one in line} for found in (own, strange)]
        assert not (words[0] | {*query}) & (words[1] | {*strange_query})
        shown, swapped = lines(PAIR.others["retrieval"][i])
        assert (shown, swapped) == (own, query[::-1])
    assert PAIR.thirds == (5, 11, 17)
    assert PAIR.batch.mask.sum(1).tolist() == [1] * 6


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match="ids must be at least 16, for rows without a common one"
    ):
        rule_rows(torch.arange(15), rows=2, examples=3, bos=-1, comma=98, line=99, seed=0)


@torch.no_grad()
def test_every_head_is_asked_for_every_kind() -> None:
    """Against the model run by hand with one head's z put in, as a share of the gap."""
    spec = TransformerSpec(d_in=60, d_out=60, n_ctx=23, d_model=16, n_layers=2, n_heads=2, d_head=8,
                           ffn=(16,), positions="learned", dtype="float64")  # fmt: skip
    model = SequenceTransformer(spec, seed=5)
    table = kinds_of(model, PAIR)
    assert len(table) == 2 * 2 * 3

    def logit(output: torch.Tensor) -> torch.Tensor:
        last = output[:, -1]
        return last[torch.arange(6), PAIR.batch.targets[:, -1]] - last.mean(-1)

    own = logit(model(PAIR.batch.inputs))
    gap = float((logit(model(PAIR.others["abstraction"])) - own).mean())
    for kind, places in (("abstraction", PAIR.thirds), ("induction", (22,)), ("retrieval", (22,))):
        _, cache = model.run_with_cache(PAIR.others[kind], return_cache_object=False)
        z = cache["blocks.1.attn.hook_z"]

        def put(value: Any, hook: Any, z: Any = z, places: Any = places) -> Any:
            value = value.clone()
            value[:, list(places), 1] = z[:, list(places), 1]
            return value

        changed = model.run_with_hooks(PAIR.batch.inputs, fwd_hooks=[("blocks.1.attn.hook_z", put)])
        expected = ((logit(changed) - own) / gap).detach().numpy()
        asked = (table["kind"] == kind) & (table["layer"] == 1) & (table["head"] == 1)
        np.testing.assert_allclose(table[asked]["by_row"].iloc[0], expected, rtol=1e-6, atol=1e-9)


def test_kinds_lie_as_far_apart_as_their_layers() -> None:
    rng = np.random.default_rng(0)
    layers = {"abstraction": (1, 3), "induction": (5, 5), "retrieval": (4, 4)}
    table = pd.DataFrame(
        [
            {"layer": layer, "kind": kind, "is_one": True, "by_row": 0.5 + 0.01 * rng.random(8)}
            for kind, both in layers.items()
            for layer in both
        ]
    )
    found = mean_layers(table, seed=0)
    assert found["induction − abstraction"][0] == pytest.approx(3, abs=0.05)
    assert found["induction − abstraction"][1] > 2.9
    assert found["retrieval − induction"][2] == pytest.approx(-1)
    without = table[table["kind"] != "induction"]
    assert mean_layers(without, seed=0) == {}


def test_a_model_that_follows_no_rule_is_not_looked_at(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"models": ["code-lm", "no/model"], "examples": 4, "rows": 8}
    setting = Setting("quick", (4,), options, tmp_path)
    verdict = run(setting)
    assert (verdict.status, "code-lm" in verdict.words) == ("not run", True)
    assert "no/model: " in verdict.words
    for absent in ("no/model", "induction-attention"):  # the second has no tokenizer
        monkeypatch.setenv("PROOFLENS_MODEL", absent)
        refused = run(setting)
        assert refused.status == "not run"
        assert refused.words.startswith(f"Needs a pretrained model. {absent}: ")
    assert "model must have a tokenizer" in refused.words
    monkeypatch.delenv("PROOFLENS_MODEL")
    monkeypatch.setattr(symbolic_heads, "_ABLE", 0.0)
    monkeypatch.setattr(symbolic_heads, "_P", 2.0)
    monkeypatch.setattr(symbolic_heads, "_SHARE", -1e9)
    monkeypatch.setattr(symbolic_heads, "_Q", 1.0)
    verdict = run(setting)
    assert verdict.status in ("partly", "reproduced", "not reproduced")
    assert set(verdict.tables["heads"]["kind"]) == {"abstraction", "induction", "retrieval"}
    assert verdict.drawings
