"""The arithmetic of the role benchmark on made-up outcomes, and its cases' truth."""

import pytest

from analyses.benchmarks.cases import decoys, subjects
from analyses.benchmarks.proof_cases import DECOYS, RELATIONS, TUNED_DECOYS, TUNED_RELATIONS
from analyses.benchmarks.roles import truth_of
from analyses.benchmarks.scoring import ROLES, Outcome, score
from interp.proofs.induction import construct_relation
from interp.proofs.mechanism import Mechanism, Part
from interp.tasks.relation import TokenRelation


def outcome(name: str, truth: set, found: set, **more: object) -> Outcome:
    return Outcome(
        {"name": name, "decoy": False, "truth": truth, "found": found, "unscored": set(),
         "exempt": set(), "peers": None} | more
    )  # fmt: skip


SINK, LOCAL = ("head", 0, 0, "sink", ""), ("head", 0, 1, "local", "")
DENSE = ("head", 0, 1, "dense", "")


def test_rates_confusion_and_decoys() -> None:
    found = score(
        [
            *(outcome(f"right {k}", {SINK}, {SINK}) for k in range(5)),
            outcome("taken for another", {LOCAL}, {DENSE}),
            outcome("none of ours", {SINK}, {SINK, LOCAL}, unscored={("head", 0, 1)}),
            outcome("decoy", set(), {SINK}, decoy=True),
            outcome("quiet decoy", set(), set(), decoy=True),
        ]
    )
    assert found["cases"] == 7
    assert found["decoy_rate"] == 0.5
    assert found["f1"] == pytest.approx(2 * 6 / (2 * 6 + 1 + 1))
    assert found["roles"]["sink"] == {"positives": 6, "precision": 1, "recall": 1, "f1": 1}
    assert found["min_role_f1"] == 0, "roles with fewer than five positives count nothing"
    assert found["confusion"]["local"]["dense"] == 1
    assert found["confusion"]["sink"]["sink"] == 6
    assert len(found["wrong"]) == 3


def test_truth_is_the_mechanisms() -> None:
    built = construct_relation(TokenRelation("induction", "copy"), heads=2, seed=3)
    truth, unscored = truth_of(built)
    assert {claim[3] for claim in truth} == {"previous-token", "induction", "copying"}
    assert not unscored
    nested = Mechanism((
        Part("head", 1, 2, "memory-location", "x[t-t_1]", round=1),
        Part("ffn", 0, None, "snap", "equality"),
    ))  # fmt: skip
    truth, unscored = truth_of(type(built)("", None, built.model, nested, built.certificate))
    assert ("layer", 1, -1, "nested-round", "x[t-t_1]") in truth
    assert unscored == {("ffn", 0, -1)}


def test_scored_cases_are_many_and_none_was_tuned_on() -> None:
    scored, tuned = subjects(), subjects(tuning=True)
    assert len(scored) >= 60
    assert sum(case.hidden for case in scored) * 2 == len(scored)
    assert not {case.name for case in scored} & {case.name for case in tuned}
    seeds = {case.seed for case in (*scored, *decoys())}
    assert not seeds & {case.seed for case in (*tuned, *decoys(tuning=True))}
    assert set(ROLES) >= {"readout", "nested-round"}


def test_relations_pass_on_other_things_in_tuning() -> None:
    cases = (*RELATIONS, *DECOYS), (*TUNED_RELATIONS, *TUNED_DECOYS)
    scored, tuned = ([case.construct.args[0] for case in some] for some in cases)  # tasks
    families = [{(task.relation, task.value) for task in some} for some in (scored, tuned)]
    sizes = [{(task.symbols, task.length, task.seed) for task in some} for some in (scored, tuned)]
    assert not families[0] & families[1]
    assert not sizes[0] & sizes[1]
    assert {relation for relation, _ in families[0]} == {relation for relation, _ in families[1]}


def test_decoys_are_of_three_sorts() -> None:
    names = [case.name for case in decoys()]
    for sort in ("unread", "silent", "random"):
        assert sum(sort in name for name in names) >= 5
