"""All that probes find in one model or store, as tables, figures and sentences.

A table and a map of layers; where latents first appear; and of each there, if asked for, a learning
curve and whether the model uses what the probe reads.

The page of probes: what can be read where, one map, and what to doubt.

Then each latent in a sentence; every score is folded. A probe that finds a latent says that it is
there, not that the model uses it: only exchanged latents say that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from interp.errors import HookError
from interp.figures.lines import sweep
from interp.figures.maps import Panel, share_maps
from interp.figures.style import save
from interp.models.baselines import Baseline
from interp.models.kinds import build
from interp.output import output_folder
from probes.activations import collect
from probes.controls import curve_table
from probes.interchange import interchange_table
from probes.positions import at_positions, positions_in_words
from probes.probe_table import layer_map, probe_table
from probes.rounds import first_decodable
from probes.sites import chosen_hooks, hook_sites, short_name, usual_hooks
from prooflens.pages.findings import in_words, told_facts
from prooflens.pages.naming import page_name
from prooflens.pages.page import Page, Picture, Section, Table, render

__all__ = ["Probing", "curve_figure", "findings", "latent_maps", "probe_source", "write_probing"]

_COLUMNS = ("latent", "hook", "kind", "score", "null_mean", "q", "control", "input", "untrained")
_MEANING = (
    "Score is r² on held-out rows, of classes balanced accuracy with chance at 0; null_mean is the "
    "score with rows exchanged, q the false-discovery rate. Control is the score for labels that "
    "only memory could tell, input that of the raw input, untrained that of random weights: what "
    "is not above them is nothing that the model did."
)
_USED = (
    "A latent that can be read is there, which does not say that the model uses it: --interchange "
    "exchanges it between rows and sees whether the output follows."
)


def probing_page(
    folder: Path,
    table: pd.DataFrame,
    first: pd.DataFrame,
    lines: Sequence[str],
    *,
    about: dict[str, Any],
    curves: pd.DataFrame | None,
    exchanged: bool,
    clear: float,
) -> str:
    """Render the page as one self-contained HTML file.

    Args:
        folder: Where the figures are.
        table: Of :func:`probes.probe_table.probe_table`.
        first: Where each latent can first be read.
        lines: A sentence a latent, and what was left out.
        about: What was probed.
        curves: Scores against rows that were learned from, if they were asked for.
        exchanged: Whether latents were exchanged.
        clear: By how much a score must exceed a baseline to be clearly above it.
    """
    best = _best(table, first)
    sections = [
        Section("Latent by latent", list(lines)),
        Section("Learning curves", (), list(_curves(folder, curves)), folded=True),
        Section("Every score", [_MEANING], (), [_scores(table)], folded=True),
    ]
    kept = [section for section in sections if section.words or section.pictures]
    name = page_name(str(about.get("model") or about.get("store") or "a store"))
    wide, narrow = folder / "layers.png", folder / "layers-narrow.png"
    picture = Picture(wide, _caption(table), narrow=narrow, told=_told(best))
    facts = told_facts(about, leave=("hooks",))
    doubts = list(_doubts(best, exchanged, clear))
    return render(
        Page(f"What can be read from {name}", _findings(best), kept, facts, picture, doubts)
    )


def _best(table: pd.DataFrame, first: pd.DataFrame) -> pd.DataFrame:
    """A row a latent: where it can first be read, or where its score is largest; ``found``."""
    rows = []
    for latent, hook, _ in first.itertuples(index=False):
        mine = table[table["latent"] == latent]
        at = mine[mine["hook"] == hook] if hook else mine.sort_values("score", ascending=False)
        rows.append(at.iloc[0].to_dict() | {"found": bool(hook)})
    return pd.DataFrame(rows)


def _findings(best: pd.DataFrame) -> list[str]:
    """Which latents can first be read where, and which nowhere."""
    said = []
    for hook, rows in best[best["found"]].groupby("hook", sort=False):
        low, high = f"{rows['score'].min():.2f}", f"{rows['score'].max():.2f}"
        scores = low if low == high else f"{low} to {high}"
        latents = in_words(list(rows["latent"]))
        said.append(f"{latents} can first be read at {hook}: score {scores}.")
    nowhere = best[~best["found"]]
    if len(nowhere):
        latents, scored = in_words(list(nowhere["latent"])), nowhere.dropna(subset="score")
        reached = f"; the best score is {scored['score'].max():.2f}" if len(scored) else ""
        said.append(f"{latents} cannot be read anywhere{reached}.")
    return said


def _doubts(best: pd.DataFrame, exchanged: bool, clear: float) -> Iterator[str]:
    found = best[best["found"]]
    for column, words in (("input", "the raw input"), ("untrained", "a model of random weights")):
        alike = found[found["score"] - found[column] < clear]
        if len(alike):
            yield f"{in_words(list(alike['latent']))} can be read from {words} as well."
    if len(found):
        least = found.sort_values("score").iloc[0]
        yield (
            f"The lowest score that counts as readable is {least['score']:.2f} "
            f"({least['latent']}), on the rows of one seed."
        )
    if not exchanged:
        yield _USED


def _caption(table: pd.DataFrame) -> str:
    hooks, latents = table["hook"].nunique(), table["latent"].nunique()
    clear = int((table["q"] < _LEVEL).sum())
    return (
        f"Score and selectivity of {latents} latents at {hooks} hooks: {clear} of {len(table)} "
        f"scores are above chance (q < {_LEVEL})."
    )


def _told(best: pd.DataFrame) -> str:
    return "; ".join(f"{r.latent} {r.score:.2f} at {r.hook}" for r in best.itertuples()) + "."


def _curves(folder: Path, curves: pd.DataFrame | None) -> Iterator[Picture]:
    if curves is None or curves.empty:
        return
    medians = curves.groupby(["latent", "rows"], sort=False)["score"].median()
    told = [
        f"{latent} {scores.iloc[0]:.2f} from {scores.index[0][1]} rows, {scores.iloc[-1]:.2f} from "
        f"{scores.index[-1][1]}"
        for latent, scores in medians.groupby("latent", sort=False)
    ]
    words = "Score on other rows against rows learned from"
    yield Picture(folder / "curves.png", f"{words}: {'; '.join(told)}.")


def _scores(table: pd.DataFrame) -> Table:
    shown = table[[name for name in _COLUMNS if name in table]].reset_index(drop=True)
    return Table(shown, f"{len(shown)} scores", sortable=True)


MARKER = ".prooflens-probes"
_KINDS = ("score", "selectivity")
_UNMEASURED = ("constant", "rare")
_FLOOR = 0.9
_LEVEL = 0.01
_LEADS = 0.5
"""The share of the way to the other row's output, beyond random directions, that leads it."""
_STILL = 0.01
"""Changes below this share of the distance between two rows' outputs count as no change."""
_CLEAR = 0.05
"""By how much a score must exceed a baseline for the difference to be mentioned."""
_BASELINES = {
    "over_input": "the raw input",
    "selectivity": "the control task",
    "over_untrained": "random weights",
}


@dataclass(frozen=True)
class Probing:
    """The results of probing a model or store.

    Attributes:
        table: The table of :func:`probes.probe_table.probe_table`, with a column ``positions`` that
            says which positions were pooled.
        first: Where each latent first is decodable, from :func:`probes.rounds.first_decodable`.
        about: What was probed, as JSON data.
        curves: Learning curves from :func:`probes.controls.curve_table`, if asked for.
        interchange: The table of :func:`probes.interchange.interchange_table`, if asked for.
    """

    table: pd.DataFrame
    first: pd.DataFrame
    about: dict[str, Any]
    curves: pd.DataFrame | None = None
    interchange: pd.DataFrame | None = None

    def hooks(self) -> dict[str, str]:
        """Latent → the hook at which it first is decodable, for the latents that are decodable."""
        return {latent: hook for latent, hook, _ in self.first.itertuples(index=False) if hook}

    def tables(self) -> dict[str, pd.DataFrame]:
        """All tables that there are: the name under which a table is stored → the table."""
        named = {"probes": self.table, "curves": self.curves, "interchange": self.interchange}
        return {name: table for name, table in named.items() if table is not None}


def probe_source(
    source: Any,
    inputs: Any,
    *,
    hooks: list[str] | None = None,
    latents: list[str] | None = None,
    untrained: Any = None,
    positions: str | None = None,
    seed: int = 0,
    about: dict[str, Any] | None = None,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Probing:
    """Probe a model on a batch, or a store.

    Args:
        source: A hooked model, or an :class:`~interp.store.ActivationStore`.
        inputs: A :class:`~interp.tasks.base.Batch` with latents for a model, None for a store.
        hooks: Names or globs; by default the residual stream between sublayers of a transformer,
            of other models and stores every hook with a position axis. They are probed in the
            order in which they fire.
        latents: The latents to probe; all by default.
        untrained: A model of the same hooks with random weights, to compare with; our own models
            make theirs, for others and stores there is none unless given.
        positions: ``5``, ``last`` or ``START:STOP[:STEP]``: only these are sampled; all that are
            scored, and stored, by default.
        seed: Seed of sampled positions, controls, nulls and random weights.
        about: Further data that is written to the JSON.
        watch: A wrapper of the iteration over hooks, such as a progress bar.

    Raises:
        HookError: if a glob matches nothing, or a hook without a position axis.
        ArgumentError: if nothing is scored at the positions.
    """
    source, inputs = at_positions(source, inputs, positions)
    sites = hook_sites(source, inputs)
    chosen = usual_hooks(source, sites) if hooks is None else chosen_hooks(source, sites, hooks)
    if untrained is None and isinstance(source, Baseline):
        untrained = build(source.spec, seed=seed + 1)
    table = probe_table(
        source, inputs, chosen, latents, untrained=untrained, seed=seed, watch=watch
    )
    pooled = positions_in_words(collect(source, inputs, chosen[:1], seed=seed))
    table = table.assign(positions=pooled)
    about = {**(about or {}), "seed": seed, "hooks": chosen, "positions": pooled}
    if hooks is None and set(chosen) == {site.name for site in sites if site.probed}:
        about["left_out"] = [site.name for site in sites if not site.probed]
    return Probing(table, first_decodable(table, floor=_FLOOR), about)


def add_curves(
    found: Probing,
    source: Any,
    inputs: Any,
    *,
    positions: str | None = None,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Probing:
    """Add the learning curve of each latent at its first decodable hook.

    Args:
        found: From :func:`probe_source`, of the same source, inputs and positions.
        source: A hooked model, or a store.
        inputs: The inputs, as for :func:`probe_source`.
        positions: The positions, as for :func:`probe_source`.
        watch: A wrapper of the iteration over latents, such as a progress bar.
    """
    source, inputs = at_positions(source, inputs, positions)
    seed = int(found.about["seed"])
    return replace(found, curves=curve_table(source, inputs, found.hooks(), seed=seed, watch=watch))


def add_interchange(
    found: Probing,
    model: Any,
    batch: Any,
    *,
    positions: str | None = None,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> Probing:
    """Add what exchanging each latent at its first decodable hook does to the model's output.

    Args:
        found: The results of :func:`probe_source`.
        model: The hooked model; of a store, the one it was made of.
        batch: The model's rows with latents; for a store, the store's own rows.
        positions: The positions, as for :func:`probe_source`.
        watch: A wrapper of the iteration over latents, such as a progress bar.

    Raises:
        HookError: for hooks with axes behind the position's other than one.
    """
    model, batch = at_positions(model, batch, positions)
    axes = {site.name: site.shape for site in hook_sites(model, batch)}
    wrong = sorted({hook for hook in found.hooks().values() if len(axes.get(hook, (0, 0))) != 2})
    if wrong:
        raise HookError(
            f"--interchange needs hooks [row, pos, feature], got {', '.join(wrong)}: name the "
            "residual stream or hook_mlp_out with --hooks"
        )
    seed = int(found.about["seed"])
    table = interchange_table(model, batch, found.hooks(), seed=seed, watch=watch)
    return replace(found, interchange=table)


def findings(found: Probing) -> list[str]:
    """One line a latent: where it first is decodable and what that is worth, or why nowhere; one
    for hooks that were left out, and one if no model with random weights was there to compare
    with. One more a latent that was exchanged: how far the output moved."""
    lines = []
    for latent, hook, _ in found.first.itertuples(index=False):
        rows = found.table[found.table["latent"] == latent]
        where = rows["hook"] == hook if hook else rows["score"] == rows["score"].max()
        row = rows[where].iloc[0]
        lines.append(f"{latent}: {_found(row) if hook else _not_found(row)}")
    if left := found.about.get("left_out"):
        lines.append(f"not probed, since they have no position axis: {', '.join(left)}")
    if found.table["untrained"].isna().all():
        lines.append(
            "random weights: not compared with (only our own models make a fresh one; "
            "probes.probe_table.probe_table takes yours as untrained=)"
        )
    if found.interchange is not None:
        lines += [_exchanged(row) for _, row in found.interchange.iterrows()]
    return lines


def _exchanged(row: pd.Series[Any]) -> str:
    start = f"{row['latent']} exchanged at {row['hook']}"
    if np.isnan(row["moved"]):
        return f"{start}: cannot be told, only {row['pairs']} pairs of rows differ in it and answer"
    if row["changed"] < _STILL:
        verdict = "does not change"
    elif row["q"] > _LEVEL or row["low"] <= 0:
        verdict = "is not seen to be used for"
    else:
        alone = row["moved"] - row["placebo"] >= _LEADS
        verdict = "leads" if alone else "has a part in"
    return (
        f"{start} {verdict} the output, which moves {row['moved']:.2f} of the way to the other "
        f"row's, in random directions {row['placebo']:.2f} (difference {row['low']:.2f} to "
        f"{row['high']:.2f}, q {row['q']:.2g}, {row['pairs']} pairs), and changes by "
        f"{row['changed']:.2f}, in random directions {row['placebo_changed']:.2f}"
    )


def _found(row: pd.Series[Any]) -> str:
    absent = np.isnan(row["untrained"])
    untrained = "" if absent else f", random weights {row['untrained']:.2f}"
    return (
        f"first decodable at {row['hook']} (score {row['score']:.2f}, q {row['q']:.2g}; control "
        f"task {row['control']:.2f}, raw input {row['input']:.2f}{untrained}){_no_more(row)}"
    )


def _not_found(row: pd.Series[Any]) -> str:
    if row["kind"] == "constant":
        return "nothing to decode, it has one value at all sampled positions"
    if row["kind"] == "rare":
        return "nothing to decode, fewer than two of its classes are in enough rows"
    best = f"best score {row['score']:.2f}, at {row['hook']}"
    if row["score"] < _FLOOR:
        return f"nowhere clearly decodable ({best}, below {_FLOOR}){_no_more(row)}"
    same = row["null_std"] < 1e-9 and abs(row["score"] - row["null_mean"]) < 1e-9
    why = "it is the same in every row, so its position tells it" if same else "rows are too few"
    null = f"{row['null_mean']:.2f} with rows exchanged, q {row['q']:.2g}"
    return f"nowhere more decodable than by chance ({best}; {null}): {why}{_no_more(row)}"


def _no_more(row: pd.Series[Any]) -> str:
    """The baselines that read something too and that the score is not clearly above."""
    scores = {name: row["score"] - row[over] for over, name in _BASELINES.items()}
    names = [
        f"{name} ({score:.2f})"
        for name, score in scores.items()
        if max(_CLEAR, row["score"] - _CLEAR) <= score
    ]
    return f"; not above {', '.join(names)}" if names else ""


def write_probing(found: Probing, out: Path, *, overwrite: bool) -> None:
    """``report.html``, ``probes.csv``, ``probes.json`` and the layer × latent map; if asked for,
    ``curves.csv`` with its figure and ``interchange.csv``. Complete or not at all."""
    with output_folder(out, overwrite=overwrite, marker=MARKER) as folder:
        for name, table in found.tables().items():
            table.to_csv(folder / f"{name}.csv", index=False)
        rows = json.loads(found.table.to_json(orient="records", double_precision=15))
        first = json.loads(found.first.to_json(orient="records"))
        text = json.dumps({**found.about, "probes": rows, "first": first}, indent=1)
        (folder / "probes.json").write_text(text + "\n", encoding="utf-8")
        save(latent_maps(found.table), folder / "layers")
        if found.curves is not None and len(found.curves):
            save(curve_figure(found.curves), folder / "curves")
        narrow = latent_maps(found.table, narrow=True)
        save(narrow, folder / "layers-narrow", formats=("png",))
        page = probing_page(
            folder,
            found.table,
            found.first,
            findings(found),
            about=found.about,
            curves=found.curves,
            exchanged=found.interchange is not None,
            clear=_CLEAR,
        )
        (folder / "report.html").write_text(page, encoding="utf-8")


def latent_maps(table: pd.DataFrame, *, narrow: bool = False) -> Figure:
    """Latent × hook from a table of :func:`probes.probe_table.probe_table`: score and selectivity;
    cells of a latent with one value, where there is nothing to measure, are blank. The maps stand
    side by side, or below one another."""
    measured = ~table["kind"].isin(_UNMEASURED)
    maps = [layer_map(table.assign(**{kind: table[kind].where(measured)}), kind) for kind in _KINDS]
    panels = [
        Panel(kind, wide.to_numpy(), list(wide.index))
        for kind, wide in zip(_KINDS, maps, strict=True)
    ]
    columns = [short_name(hook) for hook in maps[0].columns]
    across = "hook" if measured.all() else "hook (–: nothing to measure)"
    label = "0 chance, 1 perfect"
    figure = share_maps(panels, columns, label=label, across=across, narrow=narrow)
    for axes in figure.axes[: len(panels)]:
        axes.tick_params(axis="x", rotation=45)
    return figure


def curve_figure(curves: pd.DataFrame) -> Figure:
    """Score against rows learned from, a line a latent with a dot a draw of rows."""
    where = curves["latent"] + " at " + curves["hook"].map(short_name)
    figure = sweep(
        curves.assign(where=where),
        x="rows",
        y="score",
        by="where",
        log_y=False,
        across="rows learned from",
        label="score on other rows",
    )
    low, high = min(0.0, float(curves["score"].min())), max(1.0, float(curves["score"].max()))
    figure.axes[0].set_ylim(low - 0.03, high + 0.03)
    return figure
