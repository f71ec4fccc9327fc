"""The depth claims on models and counts whose answers are known."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import torch

from analyses.papers.base import Setting
from analyses.papers.depth import frontier, opening, programs
from analyses.papers.depth.ceiling import best_table, describe, search_program, table_bound
from analyses.papers.depth.exchange import Exchange, counterfactual
from analyses.papers.depth.inside import ablations, counting, decoding, nested_shares
from analyses.papers.depth.opening import open_model, verdict
from analyses.papers.depth.predictors import (
    bin_name,
    exact_match,
    letter_id,
    match_of_best,
    scores,
    strings_of,
)
from interp.program.analysis import depth
from interp.program.languages import block_word, prediction_program
from interp.proofs.depth.compiler import compile_program

GRID = {"bins": [[3, 8], [9, 12]], "width": 4, "steps": 2, "batch": 4, "learning_rate": 1e-3,
        "warmup": 1, "weight_decay": 0.0, "rows": 10, "search": 4}  # fmt: skip


def blocks_of(string: str) -> str:
    return "".join(c for i, c in enumerate(string) if i == 0 or string[i - 1] != c)


@pytest.mark.parametrize(("k", "length"), [(3, 7), (4, 8), (5, 9)])
def test_the_best_table_is_that_of_all_strings(k: int, length: int) -> None:
    words = ["".join(s) for s in product("ab", repeat=length)]
    members = [word for word in words if blocks_of(word) == block_word(k)]
    found = best_table(k, length)
    for t in range(1, length + 1):
        seen = Counter(
            (w[t - 1], w[:t].count("a"), w[:t].count("b"), blocks_of(w[:t]) == block_word(k))
            for w in members
        )
        missed = sum(min(seen[(*cell, True)], seen[(*cell, False)])
                     for cell in {key[:3] for key in seen})  # fmt: skip
        assert found[t] == pytest.approx(missed / len(members))


def test_one_layer_suffices_for_three_blocks_and_not_for_four() -> None:
    assert table_bound(3, (10, 12)) == (1.0, 1.0)
    accuracy, bound = table_bound(4, (20, 24))
    assert 0.5 < bound < accuracy < 1


def test_searched_programs_are_one_level_short() -> None:
    for k in (4, 6):
        program, match, trace = search_program(k, (12, 16), budget=30, rows=100, seed=0)
        assert depth(program) == k - 3
        assert 0 <= match < 1
        assert trace["best"].is_monotonic_increasing
        assert describe(program).startswith(f"depth {k - 3}: E3 = ")


def test_compiled_programs_are_right_on_every_string() -> None:
    models = {(k, k - 2, 0): compile_program(prediction_program(k), longest=40).model
              for k in (3, 5)}  # fmt: skip
    table = scores(models, [(3, 20), (21, 40)], rows=50)
    assert (table["exact_match"] == 1).all()
    assert match_of_best(table, (3, 20), (21, 40)) == {(3, 1): 1.0, (5, 3): 1.0}


def test_the_run_that_is_kept_is_chosen_on_other_strings() -> None:
    near, far = (31, 60), (91, 120)
    rows = [(1, near, 0.5), (2, near, 0.9), (1, far, 0.8), (2, far, 0.3)]
    table = pd.DataFrame(
        {"k": 4, "depth": 2, "seed": s, "bin": bin_name(b), "exact_match": v} for s, b, v in rows
    )
    assert match_of_best(table, near, far) == {(4, 2): 0.3}
    assert match_of_best(table, far, near) == {(4, 2): 0.5}


def test_a_program_for_fewer_blocks_fails() -> None:
    model = compile_program(prediction_program(3), longest=30).model
    assert exact_match(model, strings_of(5, (20, 30), 50)) == 0


@pytest.mark.parametrize(
    ("far", "status"),
    [
        ({(3, 1): 1.0, (4, 1): 0.1, (4, 2): 0.95}, "reproduced"),
        ({(3, 1): 1.0, (4, 1): 0.1, (4, 2): 0.94}, "partly"),
        ({(3, 1): 1.0, (4, 1): 0.1, (4, 2): 0.3}, "not reproduced"),
        ({(3, 1): 1.0, (4, 1): 0.96, (4, 2): 1.0}, "not reproduced"),
    ],
)
def test_the_frontier_rule(far: dict[tuple[int, int], float], status: str) -> None:
    assert frontier.judge(far)[0] == status


def test_the_frontier_trains_only_cells_that_are_short_by_so_much(tmp_path: Path) -> None:
    options = GRID | {"blocks": [3, 4], "depths": [1, 2], "short": [2, 3], "beyond": [[13, 20]]}
    found = frontier.run(Setting("quick", (1, 2), options, tmp_path))
    cells = {"k=3, depth=1", "k=4, depth=1", "k=4, depth=2"}
    assert found.status == "not reproduced"
    assert set(found.numbers["kept"]) == cells
    assert set(found.numbers["exact_match"]) == {"3–8 symbols", "9–12 symbols", "13–20 symbols"}
    assert all(set(of_bin) == cells for of_bin in found.numbers["exact_match"].values())
    assert len(found.tables["exact_match"]) == 3 * 2 * 3  # cells, seeds, lengths
    assert found.numbers["shallower_programs"][0]["k"] == 4


def test_positions_are_asked_by_the_same_rule_each_kind_by_itself(tmp_path: Path) -> None:
    kinds = {"rotary": {"positions": "rope"}, "slopes": {"lag_bias": "lin"}}
    options = GRID | {"blocks": [4], "depths": [1, 2], "short": [2, 3], "kinds": kinds}
    found = frontier.with_positions(Setting("quick", (1, 2), options, tmp_path))
    assert found.status == "not reproduced"
    assert set(found.numbers["gaps"]) == {"rotary, L_4", "slopes, L_4"}
    table = found.tables["exact_match"]
    assert len(table) == 2 * 2 * 2 * 2  # kinds, cells, seeds, lengths
    seen = table.groupby("positions")["accuracy"].apply(list)
    assert seen["rotary"] != seen["slopes"]


def test_positions_compare_only_depths_that_were_trained(tmp_path: Path) -> None:
    kinds = {"rotary": {"positions": "rope"}}
    options = GRID | {"blocks": [3], "depths": [1, 2], "short": [2, 3], "kinds": kinds}
    found = frontier.with_positions(Setting("quick", (1, 2), options, tmp_path))
    assert (found.status, found.numbers["gaps"]) == ("not reproduced", {})


def test_opening_finds_the_compiled_mechanism_in_the_compiled_model() -> None:
    k, batch = 4, strings_of(4, (12, 20), 60)
    model = compile_program(prediction_program(k), longest=20).model
    how = Exchange(pairs=96, length=20, steps=60)
    ideal, wrong = open_model("ideal", k, model, batch, None, how)
    same = replace(ideal, name="same")
    assert same.match == 1
    assert same.summary["placed"].all()
    assert (ablations(model, batch, letter_id(k))[1][0] == wrong[0]).all()
    assert (same.summary["broken"] > 0.5).all()
    assert (same.summary["after"] > 0.95).all()
    assert (same.summary["before"] < 0.75).all()
    assert (counting(model, batch)["even"] < 1e-6).all()
    found = verdict([same], {k: ideal})
    assert found.status == "reproduced"
    assert list(found.drawings) == ["layers"]


def test_nested_counts_are_those_of_a_loop() -> None:
    batch = strings_of(5, (9, 12), 6)
    shares = nested_shares(batch)
    assert set(shares) == {"#E2", "#E3", "#E4"}
    for row, ids in enumerate(batch.inputs.tolist()):
        for i in range(1, int(batch.mask[row].sum()) + 1):
            word = "".join("?ab?"[x] for x in ids[1 : i + 1])
            for block, letter in ((2, "b"), (3, "a"), (4, "b")):
                first = ["", "ab", "aba"][block - 2]  # block - 1 has begun
                counted = sum(
                    c == letter and blocks_of(word[: at + 1]).startswith(first)
                    for at, c in enumerate(word)
                )
                assert shares[f"#E{block}"][row, i] == pytest.approx(counted / (i + 1)), word


def test_a_compiled_count_is_read_after_its_attention_and_its_formula_after_the_ffn() -> None:
    batch = strings_of(5, (12, 24), 80)
    table = decoding(compile_program(prediction_program(5), longest=24).model, batch)
    score = table.set_index(["formula", "site"])["accuracy"]
    for layer in range(3):
        before = "hook_embed" if layer == 0 else f"blocks.{layer - 1}.hook_resid_post"
        assert score[f"#E{layer + 2}", before] < 0.9
        assert score[f"#E{layer + 2}", f"blocks.{layer}.hook_resid_mid"] > 0.99
        assert score[f"E{layer + 2}", f"blocks.{layer}.hook_resid_post"] > 0.99


def test_a_formula_from_another_string_has_its_consequences() -> None:
    words = [[0, 1, 2, 2, 2, 1, 1], [0, 1, 1, 2, 1, 1, 1]]  # abbbaa, aabaaa, BOS before them
    base, source = (torch.tensor([word]) for word in words)
    agree = base == source
    own = counterfactual(4, "E2", base, source, torch.zeros_like(agree))
    assert own[0].tolist() == [False] * 7  # no fourth block has begun
    longer = torch.tensor([[0, 1, 2, 2, 1, 2, 2]])
    assert counterfactual(4, "E3", longer, longer, agree)[0].tolist() == [False] * 5 + [True] * 2
    swapped = counterfactual(
        4, "E3", longer, torch.tensor([[0, 1, 1, 1, 1, 2, 2]]), torch.ones_like(agree)
    )
    assert not swapped.any()  # E3 never held in the source


def test_opening_needs_a_model_that_generalises() -> None:
    assert opening.judge(pd.DataFrame())[0] == "not reproduced"
    layers = pd.DataFrame({
        "k": [4, 4], "layer": [1, 2], "placed": [True, False], "shuffled": [0.5, 0.5],
        "broken": [0.9, 0.8], "before": [0.5, 0.9], "after": [0.95, 0.95],
    })  # fmt: skip
    assert opening.judge(layers)[0] == "partly"  # the ablation alone holds everywhere
    assert opening.judge(layers.assign(broken=0.0))[0] == "not reproduced"
    assert opening.judge(layers.assign(placed=True, before=0.6))[0] == "reproduced"
    assert opening.judge(layers.assign(placed=True, before=0.6, after=0.8))[0] == "partly"


def test_even_counting_is_judged_by_layer() -> None:
    heads = pd.DataFrame(
        {"k": 4, "layer": [1, 2], "even": [0.1, 0.4], "bos": [0.9, 0.3], "self": 0.9}
    )
    assert opening.judge_evenness(heads)[0] == "partly"
    assert opening.judge_evenness(heads.assign(even=0.1))[0] == "reproduced"
    assert opening.judge_evenness(heads.assign(even=0.3))[0] == "not reproduced"
    assert opening.judge_evenness(heads[:0])[0] == "not run"


def test_even_counting_runs(tmp_path: Path) -> None:
    found = opening.even(Setting("quick", (1,), GRID | {"blocks": [4]}, tmp_path))
    assert found.status in ("not run", "not reproduced", "partly", "reproduced")
    assert len(found.tables["heads"]) == 2
    assert found.drawings


def test_the_programs_claim(tmp_path: Path) -> None:
    options = {"blocks": [1, 3], "exhaustive": 5, "random": 20, "longest": 20}
    found = programs.run(Setting("quick", (0,), options, tmp_path))
    assert found.status == "reproduced"
    assert len(found.tables["programs"]) == 5
    assert (found.tables["programs"]["members"] > 0).all()
