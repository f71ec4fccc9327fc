"""When two role tables of one model agree."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyses.benchmarks.same_roles import differences, statuses

RANK = {"none": 0, "candidate": 1, "confirmed": 2}
COLUMNS = ["component", "layer", "head", "group", "role", "target", "status", "missing"]


def table(*rows: tuple[int, str, str], missing: str = "") -> pd.DataFrame:
    """Head, role, status."""
    every = [("head", 0, head, "", role, "", status, missing) for head, role, status in rows]
    return pd.DataFrame(every, columns=COLUMNS)


WHOLE = table((0, "sink", "confirmed"), (1, "local", "candidate"), (1, "copying", "confirmed"))


def test_the_same_rows_agree_in_any_order_and_from_a_file(tmp_path) -> None:
    assert differences(WHOLE, WHOLE.iloc[::-1]) == []
    WHOLE.to_csv(tmp_path / "roles.csv", index=False)  # empty text comes back as NaN
    read = pd.read_csv(tmp_path / "roles.csv")
    assert statuses(read) == statuses(WHOLE)
    assert differences(WHOLE, read) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(0, "sink", "candidate")], "head 0.0 sink is candidate, not confirmed"),
        ([], "head 0.0 sink is none, not confirmed"),
        (
            [(0, "sink", "confirmed"), (2, "sink", "candidate")],
            "head 0.2 sink is candidate, more than none",
        ),
    ],
)
def test_another_status_disagrees(rows: list[tuple[int, str, str]], said: str) -> None:
    assert differences(table((0, "sink", "confirmed")), table(*rows)) == [said]


def test_without_causes_the_confirmed_are_candidates_that_say_so_and_groups_are_left_out() -> None:
    reference = table((0, "sink", "confirmed"), (1, "local", "candidate"))
    rows = (0, "sink", "candidate"), (1, "local", "candidate")
    told = table(*rows, missing="no model could be run")
    assert differences(reference, told, causes=False) == []
    silent = differences(reference, table(*rows), causes=False)
    assert silent == ["head 0.0 sink is candidate and does not say what is missing"]
    higher = differences(reference, reference, causes=False)
    assert higher == ["head 0.0 sink is confirmed, not candidate"]
    whole = table((0, "sink", "confirmed"), (1, "sink", "confirmed"), (-1, "sink", "confirmed"))
    whole = whole.assign(group="L0H0+L0H1", component=["head", "head", "group"])
    alone = table((0, "sink", "candidate"), (1, "sink", "candidate"), missing="cause: no model")
    assert differences(whole, alone, causes=False) == []
    assert len(differences(whole, alone)) == 5, "with causes the groups must be there"


def test_a_role_that_is_not_looked_for_may_lack_and_never_rises() -> None:
    reasons = {"copying": "no weights"}
    without = WHOLE[WHOLE["role"] != "copying"]
    assert differences(WHOLE, without, unsought=reasons) == []
    higher = differences(without, WHOLE, unsought=reasons)
    assert higher == ["head 0.1 copying is confirmed, more than none"]
    unexplained = differences(WHOLE, without, unsought={"copying": ""})
    assert unexplained == ["head 0.1 copying was not looked for, and no reason is given"]


STATUS = st.sampled_from(list(RANK))


@given(
    st.lists(st.tuples(STATUS, STATUS), max_size=5),
    st.booleans(),
    st.sets(st.sampled_from(["sink", "local"])),
)
def test_a_higher_status_is_always_told(
    pairs: list[tuple[str, str]], causes: bool, unsought: set[str]
) -> None:
    roles = ["sink", "local", "dense", "sink", "local"]
    first = [(i, roles[i], a) for i, (a, _) in enumerate(pairs) if a != "none"]
    second = [(i, roles[i], b) for i, (_, b) in enumerate(pairs) if b != "none"]
    reasons = dict.fromkeys(unsought, "no weights")
    asked = table(*second, missing="not run")
    found = differences(table(*first), asked, causes=causes, unsought=reasons)
    higher = [f"head 0.{i} " for i, (a, b) in enumerate(pairs) if RANK[b] > RANK[a]]
    told = [line for line in found if "more than" in line]
    assert told == [line for line in found if any(head in line for head in higher)]
    assert len(found) >= len(higher)


def test_a_loose_name_may_stand_for_a_stricter_one_that_could_not_be_looked_for() -> None:
    words = "symbol-equality (in whose place this may stand): no weights are named"
    unsought = {"symbol-equality": "no weights are named"}
    strict = {rank: table((0, "symbol-equality", rank)) for rank in ("candidate", "confirmed")}

    def loose(head: int, rank: str, said: str = words, **options: object) -> list[str]:
        first = strict["candidate" if rank == "confirmed" else "confirmed"]
        return differences(first, table((head, "dense", rank), missing=said), **options)  # type: ignore[arg-type]

    assert loose(0, "candidate", unsought=unsought) == []
    said = ["head 0.0 dense is candidate, more than none"]
    assert loose(0, "candidate", "", unsought=unsought) == said
    assert said[0] in loose(0, "candidate")
    assert "head 0.1 dense is candidate, more than none" in loose(1, "candidate", unsought=unsought)
    assert "head 0.0 dense is confirmed, more than none" in loose(0, "confirmed", unsought=unsought)
