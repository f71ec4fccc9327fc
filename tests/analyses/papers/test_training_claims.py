"""Claims about training: what counts as the proof, rules on made-up numbers, miniatures."""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analyses.papers.base import Setting
from analyses.papers.training import diagram, models, page
from analyses.papers.training.measured import MEASURED
from analyses.papers.training.points import (
    check_parts,
    parts_of,
    points_of,
    rows_at,
    varied_options,
)
from analyses.papers.training.steps import layers_of_steps, weakest
from interp.errors import ArgumentError
from probes.locate import locate
from trained.zoo import load

ROOT = Path(__file__).parents[3]
CLAIMS = tomllib.loads((ROOT / "analyses/papers/claims.toml").read_text())["claims"]
LEDGER = {k: v for k, v in CLAIMS.items() if v["run"].startswith("analyses.papers.training.")}
BUILDERS = {
    "training-finds-adaptive": models.memory,
    "training-finds-nested": models.memory,
    "training-finds-induction": models.induction,
    "training-finds-equality": models.equality,
    "training-finds-counting": models.counting,
}
KEPT = [name for name in LEDGER if (ROOT / "docs" / "data" / f"{name}.csv").exists()]
STEPS = ((("t_1", "attention"), ("token", "output")), (("t_2", "attention"), ("x", "output")))


def location_table(*rows: tuple[Any, ...]) -> pd.DataFrame:
    columns = ["latent", "component", "circuit", "layer", "heads", "share", "verdict"]
    return pd.DataFrame(rows, columns=columns)


HELD = (
    ("t_1", "L0H1", "attention", 0, "1", 0.99, "holds"),
    ("token", "L0 heads", "output", 0, "0+1", 0.95, "holds"),
    ("t_2", "L2H0", "attention", 2, "0", 0.97, "holds"),
    ("x", "L2H0", "output", 2, "0", 0.92, "holds"),
)


EARLY = (("t_2", "L0H0", "attention", 0, "0", 1.0, "holds"),
         ("x", "L0H0", "output", 0, "0", 1.0, "holds"))  # fmt: skip


@pytest.mark.parametrize(
    ("at", "row", "layers"),
    [
        (0, HELD[0], (0, 2)),
        (2, ("t_2", "L0H0", "attention", 0, "0", 0.97, "holds"), ()),  # the same layer
        (3, ("x", "L1H0", "output", 1, "0", 0.92, "holds"), ()),  # looked and fetched apart
        (3, ("x", "L2", "output", 2, "0", 0.92, "holds"), ()),  # a layer with its FFN
        (3, ("x", "L2 FFN", "output", 2, "", 0.92, "holds"), ()),  # an FFN
        (0, ("t_1", "L0H1", "attention", 0, "1", 0.85, "part"), ()),  # a part
        (0, ("t_1", "L0H1", "output", 0, "1", 0.99, "holds"), ()),  # the other circuit
    ],
)
def test_steps_are_found_layer_after_layer_by_heads_alone_or_together(
    at: int, row: tuple[Any, ...], layers: tuple[int, ...]
) -> None:
    rows = [*HELD[:at], row, *HELD[at + 1 :]]
    assert layers_of_steps(location_table(*rows), STEPS) == layers
    if layers:
        assert weakest(location_table(*rows), STEPS) == 0.92
        assert layers_of_steps(location_table(*rows, *EARLY), STEPS) == layers, (
            "not from a layer before"
        )


def test_no_share_where_a_latent_was_not_exchanged() -> None:
    rows = (*HELD[:3], ("x", "L2H0", "output", 2, "0", float("nan"), ""))
    assert np.isnan(weakest(location_table(*rows), STEPS))


def test_the_shipped_show_and_its_control_are_told_apart() -> None:
    options = CLAIMS["training-finds-adaptive"]["quick"]
    steps = models.memory(options, 0).steps
    for name, layers in (("adaptive-memory", (1,)), ("adaptive-memory-gated", ())):
        shipped = load(name)
        table = locate(shipped.model, shipped.task, rows=48)
        assert layers_of_steps(table, steps) == layers


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("training-finds-adaptive", {}),
        ("training-finds-equality", {}),
        ("training-finds-counting", {"blocks": 4}),
    ],
)
def test_the_proof_itself_works_as_the_proof_does(name: str, changes: dict[str, Any]) -> None:
    sought = BUILDERS[name]({**LEDGER[name]["quick"], **changes}, 1)
    proof = sought.proof()
    layers, least = sought.locate_steps(locate(proof.model, proof.task, rows=48, seed=1))
    assert len(layers) == len(sought.steps)
    assert least >= 0.99


def test_a_last_count_may_be_held_with_the_symbol() -> None:
    options = {**LEDGER["training-finds-counting"]["quick"], "blocks": 3}
    shipped = load("depth-L3-layers1")
    table = locate(shipped.model, shipped.task, rows=48)
    assert layers_of_steps(table, models.counting(options, 1).steps) == ()
    assert models.counting(options, 1).locate_steps(table) == ((0,), 1.0)


OPTIONS: dict[str, Any] = {
    "heads": 1,
    "steps": 10,
    "seeds_of_roles": 0,
    "map": {"across": "heads", "columns": [1, 2], "down": "positions", "rows": ["a", "b"]},
    "strips": [{"vary": "steps", "over": [5, 10], "given": {"positions": "b"}}],
    "positions": "a",
    "found": [{"positions": "a"}],
    "otherwise": [{"positions": "b", "steps": 10}],
}


def fake_models(found: dict[tuple[str, int], int], seeds: int = 4) -> pd.DataFrame:
    """Models of every setting; of (positions, heads) the first so many seeds work as the proof."""
    rows = []
    for point in points_of(OPTIONS):
        count = found.get((point["positions"], point["heads"]), 0)
        for seed in range(seeds):
            held = {"found": seed < count, "solved": True, "weakest": 0.5, "statements": np.nan}
            rows.append({**point, "seed": seed, **held})
    return pd.DataFrame(rows)


def test_settings_that_parts_share_are_trained_once() -> None:
    points = points_of(OPTIONS)
    assert len(points) == 5
    assert {"heads": 1, "positions": "b", "steps": 10} in points
    table = pd.DataFrame(points)
    strip = parts_of(OPTIONS)[1]
    assert [len(rows_at(table, point, OPTIONS)) for point in strip.points()] == [1, 1]


def test_options_that_are_not_there_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"map and strips .*'width'"):
        check_parts({**OPTIONS, "strips": [{"vary": "width", "over": [1]}]})
    with pytest.raises(ArgumentError, match=r"found and otherwise .*'ffn'"):
        check_parts({**OPTIONS, "found": [{"ffn": 1}]})


def test_intervals_of_shares_are_exact() -> None:
    table = diagram.shares(fake_models({("a", 1): 4, ("a", 2): 0}), OPTIONS)
    rows = table.set_index(["positions", "heads", "steps"])
    all_of_them, none = rows.loc[("a", 1, 10)], rows.loc[("a", 2, 10)]
    assert all_of_them["low"] == pytest.approx(0.025 ** (1 / 4))
    assert none["high"] == pytest.approx(1 - 0.025 ** (1 / 4))
    assert (all_of_them["high"], none["low"]) == (1, 0)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ({("a", 1): 4, ("a", 2): 3, ("b", 1): 1, ("b", 2): 0}, "reproduced"),
        ({("a", 1): 4, ("a", 2): 2, ("b", 1): 1, ("b", 2): 0}, "partly"),
        ({("a", 1): 4, ("a", 2): 3, ("b", 1): 0, ("b", 2): 2}, "partly"),
        ({("a", 1): 2, ("a", 2): 3, ("b", 1): 0, ("b", 2): 2}, "not reproduced"),
    ],
)
def test_the_rule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: dict[tuple[str, int], int], status: str
) -> None:
    monkeypatch.setattr(diagram, "models_of", lambda setting, build, needed: fake_models(found))
    verdict = diagram.adaptive(Setting("quick", (0, 1, 2, 3), OPTIONS, tmp_path))
    assert verdict.status == status
    assert isinstance(verdict.drawings["shares"].figure, Figure)


def test_the_map_writes_the_counts_in_its_cells() -> None:
    cells = diagram.shares(fake_models({("a", 1): 4, ("a", 2): 3, ("b", 1): 1}), OPTIONS)
    figure = diagram.draw_diagram(cells, OPTIONS).figure
    written = {
        axes.get_title(): [text.get_text() for text in axes.texts]
        for axes in figure.axes
        if axes.images
    }
    assert written["solve the task"] == ["4/4", "4/4", "4/4", "4/4"]
    assert written["work as the proof does"] == ["4/4", "3/4", "1/4", "0/4"]
    strips = [axes for axes in figure.axes if axes.get_xlabel() == "steps"]
    assert [axes.get_title() for axes in strips] == ["positions b"]


@pytest.mark.parametrize("name", sorted(LEDGER))
def test_every_setting_of_the_ledger_can_be_built(name: str, tmp_path: Path) -> None:
    options, build = LEDGER[name]["quick"], BUILDERS[name]
    module, _ = LEDGER[name]["run"].split(":")
    import_module(module).check(Setting("quick", (1,), options, tmp_path))
    sought = [build({**options, **point}, 1) for point in points_of(options)]
    assert all(case.spec.n_layers >= 1 and case.steps for case in sought)
    assert all(case.proof().mechanism.parts for case in sought[:1])
    assert len(options["seeds"]) >= 4
    assert not set(varied_options(options)) & set(MEASURED)


def test_a_diagram_in_miniature(tmp_path: Path) -> None:
    options = {
        **LEDGER["training-finds-adaptive"]["quick"],
        "steps": 4,
        "pairs": 32,
        "map": {"across": "heads", "columns": [1], "down": "positions", "rows": ["rotary"]},
        "strips": [],
        "found": [{"heads": 1}],
        "otherwise": [],
    }
    first = diagram.adaptive(Setting("quick", (1, 2), options, tmp_path))
    assert first.status == "not reproduced"
    table = first.tables["models"]
    assert len(table) == 1  # the proof is not in the first: less than three quarters have it
    assert not table["solved"].any()
    again = diagram.adaptive(Setting("quick", (1, 2), options, tmp_path, resume=True))
    kept = again.tables["models"].drop(columns=["done_in", "statements"])
    pd.testing.assert_frame_equal(kept, table[kept.columns], check_dtype=False)


def test_the_page_shows_what_its_rows_say() -> None:
    docs = ROOT / "docs"
    text = (docs / page.PAGE).read_text()
    assert page.with_tables(text, docs) == text
    assert all((docs / "images" / f"{name}.png").exists() for name in KEPT)


LAYOUT = {"map", "strips", "found", "otherwise"}
"""Options that say which settings there are, and what is expected of them."""


def test_kept_rows_are_of_the_settings_and_seeds_of_the_ledger() -> None:
    assert KEPT
    for name in KEPT:
        options = LEDGER[name]["full"]
        table = pd.read_csv(ROOT / "docs" / "data" / f"{name}.csv", dtype={"locations": str})
        points = points_of(options)
        counts = [len(rows_at(table, point, options)) for point in points]
        assert len(table) == sum(counts)
        assert all(1 <= count <= len(options["seeds"]) for count in counts)
        assert not (table["found"] & ~table["solved"]).any()


@pytest.mark.parametrize("name", KEPT)
def test_the_quick_profile_trains_all_settings_that_decide(name: str) -> None:
    def deciding(profile: str) -> list[set[tuple]]:
        options = LEDGER[name][profile]
        points = pd.DataFrame(points_of(options))
        whole = [{**options, **point} for point in points.to_dict("records")]
        shared = LEDGER[name]["full"].keys() - {*LAYOUT, "seeds_of_roles"}
        expected = [options["found"], options["otherwise"]]
        return [
            {tuple(str(whole[i][option]) for option in sorted(shared)) for i in named}
            for named in (diagram.settings_like(points, one) for one in expected)
        ]

    assert deciding("quick") == deciding("full")
