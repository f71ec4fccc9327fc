"""Induction: tables joined, the choice of the writer, and the whole way from live models."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from interp.errors import ArgumentError
from interp.models.checkpoint import save_checkpoint
from interp.models.export import export_gpt2
from interp.models.kinds import build
from interp.models.pretrained import load_pretrained
from interp.proofs.induction import construct_relation
from interp.proofs.random_basis import random_basis
from interp.stats.head_table import head_table, score_row
from interp.stats.p_values import Null
from interp.tasks.induction import RepeatedTokens
from interp.tasks.relation import TokenRelation
from interp.weights.composition import CLEAR_EXCESS, composition_table
from interp.weights.head_weights import head_weights
from probes.induction import induction_evidence, measure_induction, previous_writers
from probes.roles import LANGUAGE
from trained import zoo


def row(
    metric: str, score: float, layer: int, head: int, null: str = "", **more: str
) -> dict[str, object]:
    against = Null(0.1, 0.01, 0.001, null)
    return score_row(metric, score, against, component="head", layer=layer, head=head, **more)


def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    mass = {"metric": "attention_mass"}
    content = [
        row(**mass, score=0.9, layer=1, head=0, target="after_same", null="tokens"),
        row(**mass, score=0.2, layer=0, head=0, target="after_same", null="tokens"),
        row(**mass, score=0.7, layer=1, head=0, target="after_same", null="positions"),
        row(**mass, score=0.95, layer=0, head=1, target="previous", null="positions"),
        row(**mass, score=0.05, layer=0, head=0, target="previous", null="positions"),
    ]
    pairs = [
        row("k_composition", 0.3, 1, 0, target="L0H0"),
        row("k_composition", 0.2, 1, 0, target="L0H1"),
        row("q_composition", 0.9, 1, 0, target="L0H1"),
    ]
    losses = [row("loss_increase", 2.5, 1, 0, target="output", method="mean")]
    return head_table(content), head_table(pairs), head_table(losses)


def role_table(status: str) -> pd.DataFrame:
    places = [("induction", 1, 0, status), ("copying", 0, 0, "confirmed")]
    return pd.DataFrame(places, columns=["role", "layer", "head", "status"])


@pytest.mark.parametrize("status", ["confirmed", "candidate"])
def test_the_kinds_of_evidence_and_the_engines_answer_stand_in_one_row(status: str) -> None:
    found = induction_evidence(*tables(), role_table(status)).set_index(["layer", "head"])
    one = found.loc[(1, 0)]
    assert one["induction"] == 0.9
    assert one["writer"] == "L0H1"
    assert (one["k_composition"], one["loss_increase"]) == (0.2, 2.5)
    assert (one["previous"], one["k_excess"]) == pytest.approx((0.85, 1.0))
    assert one["status"] == status
    first = found.loc[(0, 0)]
    assert (first["writer"], first["status"]) == ("", "")
    assert pd.isna(first["k_composition"])
    assert (induction_evidence(*tables())["status"] == "").all()


@pytest.mark.parametrize("floors", [{"share": 1.01}, {"fall": 1.01}])
def test_there_is_no_other_rule_than_the_role_engines(
    floors: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the role table says of the same rows is the status: its floors are the only ones."""
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(12, seed=7)
    strict = replace(LANGUAGE, floors=replace(LANGUAGE.floors, **floors))
    monkeypatch.setattr("probes.induction.LANGUAGE", strict)
    assert holding(measure_induction(shipped.model, batch)) == []
    monkeypatch.undo()
    assert holding(measure_induction(shipped.model, batch)) == [(1, 0, "L0H0")]


def test_the_writer_is_the_one_read_most_and_p_pays_for_the_choice() -> None:
    pairs = head_table(
        row("k_composition", score, 2, 0, target=target)
        for target, score in (("L0H0", 0.3), ("L0H1", 0.25), ("L1H0", 0.9))
    )
    found = previous_writers(pairs, {"L0H0": 0.5, "L0H1": 0.6, "L1H0": 0.1}, least=0.3)
    assert found["writer"].tolist() == ["L0H0"]
    assert found["k_p"].tolist() == pytest.approx([0.002])
    assert previous_writers(pairs, {"L1H0": 0.1}, least=0.3).empty


def test_tables_without_the_scores_are_refused() -> None:
    content, pairs, losses = tables()
    with pytest.raises(ArgumentError, match="content must hold the heads' scores"):
        induction_evidence(content.iloc[:0], pairs, losses)


def holding(found: pd.DataFrame) -> list[tuple[int, int, str]]:
    held = found[found["status"] == "confirmed"]
    return list(zip(held["layer"], held["head"], held["writer"], strict=True))


@pytest.mark.parametrize("name", ["induction-mlp", "induction-attention"])
def test_shipped_models_have_the_head_and_fresh_ones_have_none(name: str, tmp_path: Path) -> None:
    """A head a layer: the second attends by induction and the first to the token before, as the
    recipes' comments measured in training."""
    shipped = zoo.load(name)
    batch = shipped.task.sample(48, seed=5)
    found = measure_induction(shipped.model, batch)
    assert holding(found) == [(1, 0, "L0H0")]
    saved = head_weights(save_checkpoint(shipped.model, tmp_path / "saved"))
    pd.testing.assert_frame_equal(measure_induction(shipped.model, batch, factors=saved), found)
    for seed in (3, 4):
        fresh = build(shipped.model.spec, seed=seed)
        assert holding(measure_induction(fresh, batch)) == []


def test_a_bridge_is_measured_as_its_model_is(tmp_path: Path) -> None:
    shipped = zoo.load("induction-attention")
    bridge = load_pretrained(export_gpt2(shipped.model, tmp_path / "exported", bos=0)).model
    batch = shipped.task.sample(24, seed=7)
    found = measure_induction(bridge, batch)
    assert holding(found) == [(1, 0, "L0H0")]
    own = measure_induction(shipped.model, batch)
    for column in ("induction", "loss_increase"):
        assert found[column].tolist() == pytest.approx(own[column].tolist(), abs=1e-3)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_constructions_have_the_heads_that_their_mechanism_names(seed: int | None) -> None:
    task = TokenRelation("induction", "copy", symbols=12, length=17)
    proof = construct_relation(task, heads=2)
    proof = proof if seed is None else random_basis(proof, seed=seed)
    rows = RepeatedTokens(vocabulary=12, length=17, periods=(4, 7), bos=-1).sample(48, seed=6)
    (writer,), (reader,) = (
        [part for part in proof.mechanism.parts if part.role == role]
        for role in ("previous-token", "induction")
    )
    found = measure_induction(proof.model, rows)
    assert holding(found) == [(reader.layer, reader.head, f"L{writer.layer}H{writer.head}")]
    with torch.no_grad():  # its writer looks elsewhere: nothing is left that it could read
        for block in proof.model.blocks[:1]:
            block.attn.W_Q.zero_()
    assert holding(measure_induction(proof.model, rows)) == []


def test_gpt2_induction_heads_read_its_previous_token_head_and_others_do_not(
    gpt2_folder: Path,
) -> None:
    """Heads of the literature: L5H1, L5H5, L6H9, L7H2, L7H10 induce, L4H11 looks back by one;
    L10H7 suppresses copies."""
    pairs = composition_table(head_weights(gpt2_folder), ["k_composition"])
    previous = {"L4H11": 0.9, "L2H2": 0.5, "L3H2": 0.4}
    found = previous_writers(pairs, previous, least=0.3).set_index(["layer", "head"])
    least = CLEAR_EXCESS
    for place in ((5, 0), (5, 1), (5, 5), (6, 9), (7, 2), (7, 10), (7, 11), (8, 1), (9, 9)):
        assert found.loc[place, "writer"] == "L4H11"
        assert found.loc[place, "k_excess"] > least + 0.2
    for place in ((10, 7), (11, 10), (10, 0), (6, 0)):
        assert found.loc[place, "k_excess"] < least
