"""Evidence on rows whose true mean is known, and on models whose every row was run."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run import (
    Change,
    LogitDifference,
    Loss,
    Mean,
    Metric,
    Run,
    Site,
    ffn_sites,
    gather_evidence,
    head_sites,
)  # fmt: skip
from interp.run.evidence import LEAST_ROWS
from interp.tasks.base import Batch

FLOOR, ALPHA = 0.1, 0.05


class Drawn:
    """Stands for a run: rises and slopes of edits are given, ``[edit, row]``."""

    def __init__(self, rises: Tensor, slopes: Tensor) -> None:
        self._rises, self._slopes = rises, slopes
        self.asked: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return self._rises.shape[1]

    def slopes(self, many: Any, metric: Any) -> Tensor:
        return self._slopes

    def rises(self, many: Sequence[Any], metric: Any, rows: list[int]) -> Iterator[Tensor]:
        for edit in many:
            self.asked.setdefault(edit.site.head, set()).update(rows)
            yield self._rises[edit.site.head, rows][:, None]

    def by_row(self, values: Tensor, rows: list[int]) -> Tensor:
        return values[:, 0]


def gather_from(rises: np.ndarray, slopes: np.ndarray, **options: Any) -> tuple[list[Any], Drawn]:
    run = Drawn(torch.from_numpy(rises), torch.from_numpy(slopes))
    edits = [Mean(Site(0, "z", edit)) for edit in range(len(rises))]
    options = {"floor": FLOOR, "alpha": ALPHA, "cheap": 0} | options
    return gather_evidence(run, edits, **options), run


def draw(kind: str, edits: int, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rises with mean 0, and slopes that follow them as well as they did on real models."""
    rng = np.random.default_rng(seed)
    shape = edits, rows
    if kind == "normal":
        rises = 0.1 * rng.normal(size=shape)
    elif kind == "student":  # three degrees of freedom
        rises = 0.1 * rng.standard_t(3, size=shape)
    elif kind == "few large rows":  # one row in 16 of ± 3 nats
        rises = 0.05 * rng.normal(size=shape) + 3 * rng.choice(
            [-1, 0, 1], p=[1 / 32, 15 / 16, 1 / 32], size=shape
        )
    else:  # mostly a little above the mean, rarely far below: a false rise where no such row is
        rare = rng.random(shape) < 1 / 16
        rises = np.where(rare, -1.5 + 0.1, 0.1) + 0.02 * rng.normal(size=shape)
        rises += -(0.1 - 1.5 / 16)
    slopes = 0.8 * rises + 0.2 * rises.std() * rng.normal(size=shape) - 0.02
    return rises, slopes


KINDS = ("normal", "student", "few large rows", "mostly above")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [32, 96])
def test_a_mean_at_the_floor_is_rarely_said_to_be_above(kind: str, rows: int) -> None:
    rises, slopes = draw(kind, 1500, rows)
    found, _ = gather_from(rises + FLOOR, slopes + FLOOR * 0.8)
    wrong = sum(one.status == "above" for one in found)
    # Skewed rows, of which the rare ones are missing in a sample, are beyond any interval from
    # rows alone: the same share is wrong where every row was run.
    exact, _ = gather_from(rises + FLOOR, slopes, exhaustive=True)
    bound = max(ALPHA / 2 * len(found), sum(one.status == "above" for one in exact))
    assert wrong <= bound + 3 * bound**0.5


@pytest.mark.parametrize("kind", KINDS[:3])
def test_clearly_needed_edits_are_found_with_few_rows(kind: str) -> None:
    rises, slopes = draw(kind, 300, 32)
    found, run = gather_from(rises + 2.5, slopes)  # slopes say nothing of it: saturated
    above = [one.status == "above" for one in found]
    assert np.mean(above) > 0.95
    assert min(one.rows for one in found) >= LEAST_ROWS
    assert np.mean([one.rows for one in found]) < 16
    assert all(len(rows) == found[edit].rows for edit, rows in run.asked.items())


def test_slopes_save_rows_and_alone_decide_nothing() -> None:
    rises, slopes = draw("normal", 500, 32)
    rises, slopes = 2 * rises + 0.25, 2 * slopes + 0.25
    found, _ = gather_from(rises, slopes)
    plain, _ = gather_from(rises, 0 * slopes)
    assert np.mean([one.rows for one in found]) < 0.85 * np.mean([one.rows for one in plain])
    assert sum(one.status == "above" for one in found) > 0.9 * len(found)
    # The same rises with slopes that say the opposite: no other decision, more rows.
    led, _ = gather_from(rises, -3 * slopes)
    decided = [(a.status, b.status) for a, b in zip(found, led, strict=True)]
    assert sum({"above", "below"} == {*pair} for pair in decided) == 0


def test_the_estimate_has_no_bias_whatever_slopes_say() -> None:
    rng = np.random.default_rng(3)
    rises = 30 + rng.standard_t(5, size=(1000, 32))  # far above the floor: all stop at one look
    for slopes in (rng.normal(size=rises.shape), 0.9 * rises - 5, 60 - rises):
        found, _ = gather_from(rises, slopes)
        assert {one.rows for one in found} == {LEAST_ROWS}
        errors = np.array([one.rise for one in found]) - 30
        assert abs(errors.mean()) < 4 * errors.std() / len(errors) ** 0.5


def test_intervals_hold_the_mean() -> None:
    rises, slopes = draw("normal", 1000, 64, seed=5)
    found, _ = gather_from(rises + FLOOR, slopes)  # the floor is the mean
    missed = np.mean([not one.low <= FLOOR <= one.high for one in found if one.rows > 2])
    assert missed < ALPHA + 0.015


def test_what_stays_open_is_undecided_and_what_is_small_is_screened() -> None:
    rises = np.tile(0.1 + 0.2 * np.array([1, -1] * 16), (1, 1))
    (found,), _ = gather_from(rises, rises * 0)
    assert (found.status, found.rows) == ("undecided", 32)
    assert found.low < FLOOR < found.high
    (small,), _ = gather_from(np.full((1, 32), 0.001), np.zeros((1, 32)))
    assert (small.status, small.rows) == ("screened", 2)
    assert "screened after 2 rows" in str(small)
    (below,), _ = gather_from(np.full((1, 32), 0.05) + 1e-3 * rises, np.zeros((1, 32)))
    assert (below.status, below.rows) == ("below", 8)


def test_one_row_confirms_nothing() -> None:
    rises = np.zeros((1, 32))
    rises[0] = 0.06
    for row in range(32):
        some = rises.copy()
        some[0, row] = 3.0
        (found,), _ = gather_from(some, 0 * some, seed=row)
        assert found.status != "above"


def test_exhaustive_is_a_t_interval_over_all_rows() -> None:
    rises, slopes = draw("student", 5, 20)
    found, _ = gather_from(rises, slopes, exhaustive=True)
    for one, rows in zip(found, rises, strict=True):
        low, high = stats.t.interval(0.95, 19, rows.mean(), stats.sem(rows))
        assert (one.rise, one.low, one.high) == pytest.approx((rows.mean(), low, high))
        assert one.rows == 20


def test_a_floor_of_nothing_and_odds_of_one_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"floor must be above 0.*; alpha must be between"):
        gather_from(np.zeros((1, 4)), np.zeros((1, 4)), floor=0.0, alpha=1.0)


@pytest.mark.parametrize(
    ("metric", "floor"), [(Loss(), 0.2), (LogitDifference(2), 0.4), (Change(), 20.0)], ids=str
)
def test_a_model_gives_the_findings_of_all_rows(metric: Metric, floor: float) -> None:
    spec = TransformerSpec(
        d_in=9, d_out=9, n_ctx=10, d_model=12, n_layers=2, n_heads=3, d_head=4, ffn=(8,),
        positions="learned", norm="layernorm",
    )  # fmt: skip
    model = SequenceTransformer(spec, seed=1)
    for parameter in model.parameters():
        parameter.data *= 2.5
    tokens = torch.randint(9, (48, 10), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():  # what the model says is right: every part is needed to some degree
        batch = Batch(tokens, model(tokens).argmax(-1), torch.ones(48, 10, dtype=torch.bool))
    edits = [Mean(site) for site in (*head_sites(model), *ffn_sites(model))]
    every = gather_evidence(Run(model, batch), edits, metric, floor=floor, exhaustive=True)
    few = gather_evidence(Run(model, batch), edits, metric, floor=floor, cheap=0)
    for one, whole in zip(few, every, strict=True):
        assert {one.status, whole.status} != {"above", "below"}
        assert one.status != "above" or whole.rise > floor
        assert one.status != "screened" or whole.rise < floor
        if one.rows == 48:
            assert one.rise == pytest.approx(whole.rise)
    assert sum(one.rows for one in few) < sum(one.rows for one in every)
    assert any(one.status == "above" for one in few)


def test_each_edit_has_its_own_floor() -> None:
    rises, slopes = draw("normal", 6, 32)
    floors = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]
    found, _ = gather_from(rises + 0.3, slopes + 0.3, floor=floors)
    for edit, floor in enumerate(floors):
        alone, _ = gather_from(rises + 0.3, slopes + 0.3, floor=floor)
        assert found[edit] == alone[edit]
    assert [one.status for one in found][::5] == ["above", "screened"]


def test_odds_of_one_side_do_not_move_the_other() -> None:
    rises, slopes = draw("normal", 200, 32)
    found, _ = gather_from(rises + 0.25, slopes, alpha=(0.05, 1e-6))
    plain, _ = gather_from(rises + 0.25, slopes, alpha=0.05)
    rows = [sum(one.rows for one in some if one.status == "above") for some in (found, plain)]
    assert rows[0] > rows[1], "more rows before something is above"
    assert all(one.high == other.high for one, other in zip(found, plain, strict=True)
               if one.rows == other.rows)  # fmt: skip


def test_an_exhaustive_run_of_some_rows_is_refused() -> None:
    rises, slopes = draw("normal", 5, 32)
    for most in (1, 31):
        with pytest.raises(ArgumentError, match="most must be all 32 rows where exhaustive=True"):
            gather_from(rises, slopes, exhaustive=True, most=most)
    found, _ = gather_from(rises, slopes, exhaustive=True, most=32)
    assert {one.rows for one in found} == {32}


def test_no_more_rows_than_the_most_are_run() -> None:
    rises, slopes = draw("student", 50, 32)
    found, run = gather_from(rises + FLOOR, slopes, most=LEAST_ROWS)
    assert max(len(rows) for rows in run.asked.values()) == LEAST_ROWS
    assert {one.rows for one in found} <= {2, LEAST_ROWS}


def test_rows_are_spared_where_all_could_not_bring_it_above() -> None:
    rng = np.random.default_rng(4)
    small = 0.03 + 0.15 * rng.standard_normal((200, 64))
    found, _ = gather_from(small, np.zeros_like(small), alpha=(ALPHA, 1e-4))
    spared = [one for one in found if one.rows < 64 and one.status == "undecided"]
    assert len(spared) > 50
    whole, _ = gather_from(small, np.zeros_like(small), alpha=(ALPHA, 1e-4), exhaustive=True)
    assert not any(one.status == "above" for one in whole)
    needed = 0.3 + 0.3 * rng.standard_normal((200, 64))
    found, _ = gather_from(needed, np.zeros_like(needed), alpha=(ALPHA, 1e-3))
    whole, _ = gather_from(needed, np.zeros_like(needed), alpha=(ALPHA, 1e-3 / 4), exhaustive=True)
    above = [one.status == "above" for one in whole]
    lost = [a and b.status != "above" for a, b in zip(above, found, strict=True)]
    assert sum(above) > 150
    assert sum(lost) <= 0.05 * sum(above)
