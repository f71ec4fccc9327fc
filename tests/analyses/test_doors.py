"""One model through every door of the language profile."""

from functools import partial

from analyses.benchmarks import by_content, composed, doors, language
from analyses.benchmarks.circuits import Sizes, construct_circuit
from analyses.benchmarks.known import Built


def induction_circuit() -> Built:
    made = construct_circuit("induction", Sizes(12, 18, 2, True), seed=2)
    return Built(made.model, frozenset(), frozenset(), 0)


def test_doors_of_a_language_model_agree() -> None:
    told = dict(doors._language(induction_circuit))
    assert len(told) == 5
    assert not any(told.values()), told


def test_there_are_forty_pairs_at_least_and_models_of_the_benchmark_are_known() -> None:
    names = [one.name for one in doors.models()]
    assert len(set(names)) == len(names)
    language_doors = len(doors._LANGUAGE) + len(doors._CIRCUITS)
    assert 5 * language_doors + 4 * len(doors._TASK) + 1 >= 40
    every = (*language.subjects(), *by_content.subjects(), *composed.subjects())
    known = {one.name for one in every}
    assert known >= {f"language {n}" for n in doors._CIRCUITS}


def test_the_share_counts_every_pair_and_names_what_differs(monkeypatch) -> None:
    def door_answers(name: str) -> list[doors.Said]:
        return [("one door", []), ("another", [f"head 0.0 of {name} is none"])]

    found = [doors.Doors(name, partial(door_answers, name)) for name in ("a", "b")]
    monkeypatch.setattr(doors, "models", lambda: found)
    monkeypatch.setattr(doors, "measure_all", lambda measure, models, workers: map(measure, models))
    result = doors.measure_doors(1)
    assert result["doors"] == 4
    assert result["doors_agree"] == 0.5
    assert result["doors_differ"]["a: another"] == ["head 0.0 of a is none"]
