"""The memory part of the demo's report: trained model against constructed proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analyses.report.page import Picture, Section, Table
from analyses.study import Study
from interp.figures.lags import kernels_by_lag
from interp.figures.maps import Panel, share_maps
from interp.figures.style import save
from interp.heads.effects import components
from interp.proofs.mechanism import Construction
from probes.agreement import agreement

__all__ = ["Comparison", "findings", "sections"]

_SITES = {"hook_embed": "embedding", "resid_mid": "after attention", "resid_post": "after FFN"}


@dataclass(frozen=True)
class Comparison:
    """Two studies of one task and the proof behind the second."""

    trained: Study
    constructed: Study
    construction: Construction

    @property
    def studies(self) -> tuple[Study, Study]:
        """Trained, then constructed."""
        return self.trained, self.constructed

    @cached_property
    def agreement(self) -> pd.DataFrame:
        """The proof's statements, checked on both models."""
        mechanism = self.construction.mechanism
        ours, theirs = (agreement(mechanism, s.roles) for s in self.studies)
        named = ("holds", "strength", "by")
        return pd.concat(
            [
                theirs[["statement"]],
                *[table[list(named)].add_suffix(f"_{name}")
                  for name, table in (("constructed", theirs), ("trained", ours))],
            ],
            axis=1,
        )  # fmt: skip


def findings(comparison: Comparison) -> list[str]:
    """Three sentences: the trained model's roles, the proof's, and how exact each is."""
    trained, construction = comparison.trained, comparison.construction
    held = comparison.agreement["holds_trained"]
    groups = comparison.constructed.roles.query("role == 'memory-location'").groupby("target")
    sizes = ", ".join(f"{len(group)} for {memory}" for memory, group in groups)
    trained_well, worst = trained.performance, comparison.constructed.performance.worst
    bound = construction.certificate.error
    return [
        "In the trained model " + "; ".join(_said(trained)) + ".",
        f"The constructed proof does the same with groups of heads ({sizes}): none of them looks "
        "at its lag, only their signed sum does. "
        f"{int(held.sum())} of its {len(held)} statements hold for the trained model.",
        f"On fresh rows the trained model is right at {trained_well.accuracy:.2%} of positions "
        f"(error {trained_well.error:.1e} of the target's variance); the construction's worst "
        f"error is {worst:.1e}, {'within' if worst <= bound else 'ABOVE'} its certificate of "
        f"{bound:.1e}.",
    ]


def _said(study: Study) -> Iterator[str]:
    """What each memory and the answer are served by, or that nothing is confirmed to serve them."""
    roles = study.roles
    for memory, lag in study.memories.items():
        found = roles[(roles["target"] == memory) & (roles["role"] == "memory-location")]
        sure = found[found["status"] == "confirmed"]
        if len(sure):
            heads = " and ".join(f"L{row.layer}H{row.head}" for row in sure.itertuples())
            verb = "extract" if len(sure) > 1 else "extracts"
            strength = sure["strength"].max()
            yield f"head {heads} {verb} {memory} (lag {lag}; r² lost without it {strength:.2f})"
        else:
            rest = f" ({len(found)} candidates)" if len(found) else ""
            yield f"no head is confirmed to extract {memory}{rest}"
    readout = roles[roles["role"] == "readout"]
    sure = readout[readout["status"] == "confirmed"]
    if len(sure):
        row = sure.iloc[0]
        yield (
            f"the FFN of layer {row['layer']} computes the Boolean function (r² lost without it "
            f"{row['strength']:.2f}, loss up by {row['effect']:.0%} of the target's variance)"
        )
    else:
        yield "no FFN is confirmed to compute the Boolean function"


def sections(comparison: Comparison, folder: Path) -> list[Section]:
    """The report's sections; figures are written to ``folder``."""
    task = comparison.trained.task
    arguments = ", ".join(task.arguments)
    return [
        Section(
            "The task and the two models",
            (
                f"y[t] = f({arguments}) with f = {task.readout} on inputs of ±1. One transformer "
                "layer with two heads was trained on it; a second model is the constructive proof "
                "that one layer can do it, written down as weights.",
                "The trained model has a learned bias per lag and a softmax. The constructed one "
                "has heads that decay exponentially with the lag, without a softmax: T + 1 of them "
                "together select lag T, and an FFN reads f off with clipped ramps.",
                "The trained model is one seed of its recipe, which says what other seeds do.",
            ),
            tables=(Table(_performance(comparison), "Both models on the same fresh rows."),),
        ),
        Section(
            "Which component does what",
            (
                "A role is confirmed only when what a component does and what is lost without it "
                "agree; every test has a null and a floor under its effect.",
                *[f"Without a role in the {study.name} model: {_without_role(study)}."
                  for study in comparison.studies],
            ),
            tables=tuple(
                Table(_role_table(study), f"Roles in the {study.name} model, with the evidence.")
                for study in comparison.studies
            ),
        ),
        Section("Does the trained model do what the proof does?", tables=(
            Table(comparison.agreement, "Statements of the proof, checked on both models; strength "
                  "is the decodability (r²) that the strongest confirmed component accounts for."),
        )),
        Section("Where each head looks", (
            "A trained head can own a memory because a softmax over a learned table can look at "
            "one lag. The constructed heads all look at the present; along the direction that "
            "holds a memory their signed contributions cancel at every lag but one.",
        ), _lag_pictures(comparison, folder)),
        Section("What becomes readable where, and what ablation removes", (
            "Rows of the first figure are places in the residual stream, in order. Memories appear "
            "after attention, the answer after the FFN. Before the FFN a line reads only part of "
            "the answer (r² about one half: each memory alone predicts it in half of the cases), "
            "while a nonlinear probe reads all of it there: the FFN's job is the readout.",
        ), _layer_pictures(comparison, folder)),
    ]  # fmt: skip


def _performance(comparison: Comparison) -> pd.DataFrame:
    rows = []
    for study in comparison.studies:
        weights = sum(p.count_nonzero().item() for p in study.model.parameters())
        rows.append({
            "model": study.name, "heads": sum(study.model.spec.heads), "non-zero weights": weights,
            "accuracy": study.performance.accuracy,
            "error (of the target's variance)": study.performance.error,
            "largest error": study.performance.worst,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _role_table(study: Study) -> pd.DataFrame:
    columns = ["role", "target", "status", "strength", "effect", "q", "evidence"]
    return pd.concat([_names(study.roles), study.roles[columns]], axis=1)


def _without_role(study: Study) -> str:
    has = set(_names(study.roles))
    return ", ".join(p.name for p in components(study.model) if p.name not in has) or "none"


def _names(rows: pd.DataFrame) -> pd.Series:
    names = [f"L{row.layer}H{row.head}" if row.component == "head" else f"L{row.layer} FFN"
             for row in rows.itertuples()]  # fmt: skip
    return pd.Series(names, index=rows.index, name="component", dtype=object)


def _lag_pictures(comparison: Comparison, folder: Path) -> tuple[Picture, ...]:
    panels = []
    for study in comparison.studies:
        layers = enumerate(study.kernels)
        rows = [f"L{layer}H{head}" for layer, k in layers for head in range(len(k.mass))]
        panels.append(Panel(study.name, np.concatenate([k.mass for k in study.kernels]), rows))
    lags = [str(lag) for lag in range(panels[0].values.shape[1])]
    across = "lag (positions back)"
    masses = share_maps(panels, lags, label="share of attention", across=across)
    kernels = {
        study.name: {memory: study.kernels[0].kernels[memory].sum(0) for memory in study.memories}
        for study in comparison.studies
    }
    return (
        _picture(masses, folder, "attention-by-lag",
                 "Share of each head's attention at each lag, mean over scored positions."),
        _picture(kernels_by_lag(kernels, comparison.trained.memories), folder, "kernels-by-lag",
                 "What the heads of the layer put into the direction that holds each memory: their "
                 "summed signed kernel over lags."),
    )  # fmt: skip


def _layer_pictures(comparison: Comparison, folder: Path) -> tuple[Picture, ...]:
    latents = [*comparison.trained.task.arguments, "f"]
    reads, losses = [], []
    for study in comparison.studies:
        layers = study.scores[study.scores["metric"] == "decodability"]
        read = layers.pivot(index="circuit", columns="target", values="score")
        sites = [site for site in study.sites if site in read.index]
        names = [next(word for key, word in _SITES.items() if key in site) for site in sites]
        reads.append(Panel(study.name, read.loc[sites, latents].to_numpy(), names))
        drops = study.scores[study.scores["metric"] == "decodability_drop"]
        drops = drops.assign(component=_names(drops))
        lost = drops.pivot(index="component", columns="target", values="score")
        parts = list(dict.fromkeys(drops["component"]))
        losses.append(Panel(study.name, lost.loc[parts, latents].to_numpy(), parts))
    return (
        _picture(share_maps(reads, latents, label="held-out r², linear probe", across="latent"),
                 folder, "decodability",
                 "Linear decodability of each latent along the residual stream."),
        _picture(share_maps(losses, latents, label="r² lost without it", across="latent"),
                 folder, "ablation",
                 "Decodability lost right after a component's sublayer when it is mean-ablated "
                 "(the probe is refitted)."),
    )  # fmt: skip


def _picture(figure: Figure, folder: Path, name: str, caption: str) -> Picture:
    (png,) = save(figure, folder / "figures" / name, formats=("png",))
    return Picture(png, caption)
