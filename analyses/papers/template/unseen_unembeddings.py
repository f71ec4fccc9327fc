"""Do the unembeddings of unseen symbols collapse, and is that why they are not copied?

Our reading of the abstract of arXiv 2604.21632. The gradient of the cross-entropy with respect to
the unembedding u_s of a symbol that no training string has is Σ p_s(x) h(x) over strings: the
stream h, weighted by the probability of the symbol, which begins nearly the same for all such
symbols. So the gradient moves them alike, away from the mean stream; weight decay shrinks each:

    cosine   mean over pairs of unseen symbols of u_s · u_t / (‖u_s‖ ‖u_t‖); 1 is a collapse
    shared   ‖mean over s of Δu_s‖² / mean over s of ‖Δu_s‖²,  Δ what training moved; 1 is alike.
             What decay takes from each row is not shared
    set back the same model, with the unembeddings of unseen symbols where they began
    turned   the same model, with their directions where they began and their norms as trained
    control  the same model, trained without weight decay

Fixed copying αβα → β, everything trained, embedding and unembedding shared, so that what is set
back is both. That copying returns with the rows set back says that these rows were in the way, be
it by their common direction or by their norms; ``turned`` and the control tell the two apart.
Cosines that stay small in these models say nothing about models whose cosines are near 1, and
symbols of a language model that no text has are not symbols of templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import normalize

from analyses.figures.dots import accuracy_sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import by_seed, decide
from analyses.papers.template.models import NAMES, on_unseen, spec_of, task_sizes
from prooflens.architectures import build
from prooflens.errors import MissingDependencyError
from prooflens.tasks import TemplateTask, copying
from prooflens.trained import Fit, TrainingRun, folder_of

__all__ = ["collapse", "mean_cosine", "shared_move"]

_COLLAPSED, _RESTORED = 0.9, 0.3
"""Numbers of the claim's rule: mean cosine from which unembeddings count as collapsed, and rise in
accuracy with which the collapse counts as the cause of a failure."""

_DIRECTION = 0.5
"""Least share of that rise that must come from the directions alone."""

_AS_HIGH = 0.05
"""A cosine that is lower by at most this counts as equally high."""

_ROWS = 512
_OTHERS, _SPARED = 200, 300
"""Number of tokens of Gemma's vocabulary that are compared, and number of tokens at its beginning
that are left out because they are control tokens."""


def collapse(setting: Setting) -> Verdict:
    """Test that unembeddings of unseen symbols collapse in training, and that their common
    direction, and not their norms, keeps these symbols from being copied (ledger:
    ``template-unembeddings-collapse``)."""
    o = setting.options
    task = copying(**task_sizes(o))
    experiment = on_unseen(setting, rows=o["rows"], snapshots=o["every"])
    for decay, kind in ((o["weight_decay"], ""), (o["weight_decay"], "b"), (0.0, "b")):
        labels = {"model": NAMES[kind], "decay": decay}
        experiment.add(labels, task, spec_of(task, o, kind), weight_decay=decay)
    _, fits = experiment.run()
    runs = zip(experiment.planned, fits, strict=True)
    rows = [
        {**labels, **row} for (labels, run), fit in runs for row in _over_training(task, run, fit)
    ]
    table = pd.DataFrame(rows)
    last = table[table["steps"] == table["steps"].max()]
    columns = ("cosine", "shared", "accuracy", "set back", "turned")
    middle = last.groupby(["model", "decay"])[list(columns)].median()
    decayed, control = (middle.loc[(NAMES["b"], decay)] for decay in (o["weight_decay"], 0.0))
    cosine = float(middle.xs(o["weight_decay"], level="decay")["cosine"].min())
    collapsed, caused = cosine >= _COLLAPSED, _is_cause(decayed, control)
    unused = _token_cosines(o["pretrained"])
    said = "; ".join(
        f"{name}, weight decay {decay:g}: cosine {row['cosine']:.2f}, shared {row['shared']:.2f}, "
        f"accuracy on unseen symbols {row['accuracy']:.2f}, with their rows set back "
        f"{row['set back']:.2f}, turned back {row['turned']:.2f}"
        for (name, decay), row in middle.iterrows()
    )
    words = (
        f"After {int(table['steps'].max())} steps unembeddings of unseen symbols have a mean "
        f"cosine of {cosine:.2f}, where {_COLLAPSED} is asked for; models with bI copy "
        f"{decayed['accuracy']:.2f} of them, {decayed['set back']:.2f} with these rows set back "
        f"and {decayed['turned']:.2f} with their directions alone; without weight decay they "
        f"copy {control['accuracy']:.2f} at a cosine of {control['cosine']:.2f}."
    )
    if unused:
        words += (
            f" In {o['pretrained']} the embeddings of {unused['count']:.0f} tokens that no text "
            f"has have a mean cosine of {unused['unused']:.2f}, other tokens' "
            f"{unused['others']:.2f}."
        )
    figure = accuracy_sweep(
        _shares(table, o["weight_decay"]),
        x="steps",
        y="share",
        across="training steps",
        chance=1 / (2 * o["symbols"]),
    )
    numbers = {name: by_seed(last, ["model", "decay"], name, between=" ") for name in columns}
    return Verdict(
        decide(collapsed and caused, collapsed or caused),
        words,
        said,
        {**numbers, "unused tokens": unused},
        {"training": table},
        {
            "accuracy": Drawing(
                figure, "Accuracy on unseen symbols over training, with bI, a dot a seed."
            )
        },
    )


def _shares(table: pd.DataFrame, decay: float) -> pd.DataFrame:
    """Return the numbers of models with bI: with weight decay, as trained and with unembedding rows
    set back, and without weight decay."""
    shown = {
        "weight decay": (decay, "accuracy"),
        "their rows set back": (decay, "set back"),
        "their directions set back": (decay, "turned"),
        "no weight decay": (0.0, "accuracy"),
    }
    models = table[table["model"] == NAMES["b"]]
    parts = [
        rows.assign(model=name, share=rows[column])
        for name, (trained_at, column) in shown.items()
        for rows in [models[models["decay"] == trained_at]]
    ]
    return pd.concat(parts)[["model", "seed", "steps", "share"]]


def _is_cause(decayed: pd.Series, control: pd.Series) -> bool:
    """Whether the common direction keeps unseen symbols from being copied: setting the rows back
    brings copying back, their directions do most of it, and models without weight decay whose rows
    are as close to each other fail as well.

    Args:
        decayed: Medians of the models that were trained with weight decay.
        control: Medians of those trained without.
    """
    rise = decayed["set back"] - decayed["accuracy"]
    turned = decayed["turned"] - decayed["accuracy"]
    escaped = control["accuracy"] - decayed["accuracy"] >= _RESTORED
    as_close = control["cosine"] >= decayed["cosine"] - _AS_HIGH
    by_direction = turned >= _DIRECTION * rise
    return bool(rise >= _RESTORED and by_direction and not (as_close and escaped))


def _over_training(task: TemplateTask, run: TrainingRun, fit: Fit) -> Iterator[dict[str, float]]:
    """Yield the measurements of a run at each of its snapshots."""
    begun = build(run.spec, seed=run.training.seed)
    first, test = len(task.regular), task.unseen()
    seen, unseen = (slice(first + low, first + high) for low, high in (task.train, task.test))
    start = begun.W_E.detach()
    for steps, weights in sorted(fit.snapshots.items()):
        model = deepcopy(begun)
        model.load_state_dict(dict(weights))
        rows = model.W_E.detach().clone()
        accuracy = _accuracy(model, test)
        norms = rows[unseen].norm(dim=-1, keepdim=True)
        _set_back(model, unseen, start[unseen])
        whole = _accuracy(model, test)
        _set_back(model, unseen, normalize(start[unseen], dim=-1) * norms)
        yield {
            "steps": steps,
            "cosine": mean_cosine(rows[unseen]),
            "cosine of seen": mean_cosine(rows[seen]),
            "shared": shared_move(rows[unseen] - start[unseen]),
            "accuracy": accuracy,
            "set back": whole,
            "turned": _accuracy(model, test),
        }


@torch.no_grad()
def _set_back(model: Any, symbols: slice, rows: Tensor) -> None:
    """Set the unembedding rows of some symbols to ``rows``, ``[symbol, d_model]``, in place."""
    model.W_E[symbols] = rows


@torch.no_grad()
def _accuracy(model: Any, task: TemplateTask) -> float:
    batch = task.sample(_ROWS, seed=10_000)
    right = model(batch.inputs)[batch.mask].argmax(-1) == batch.targets[batch.mask]
    return float(right.double().mean())


def mean_cosine(rows: Tensor) -> float:
    """Return the mean cosine between different rows of ``[row, d_model]``."""
    unit, n = normalize(rows.double(), dim=-1), len(rows)
    return float((unit.sum(0).square().sum() - n) / (n * (n - 1)))


def shared_move(moves: Tensor) -> float:
    """Return the share of the movement of rows ``[row, d_model]`` that is common to all rows."""
    moves = moves.double()
    return float(moves.mean(0).square().sum() / moves.square().sum(1).mean().clamp_min(1e-30))


def _token_cosines(name: str) -> Mapping[str, float]:
    """The mean cosine of embeddings of a pretrained model's unused tokens and of others; empty
    where the model is not there, or names no token so."""
    from transformers import AutoTokenizer

    try:
        folder = Path(folder_of(name))
    except MissingDependencyError:
        return {}
    if not folder.is_dir():
        return {}
    known = AutoTokenizer.from_pretrained(folder).get_vocab()
    ids = sorted(at for token, at in known.items() if token.startswith("<unused") and at < _SPARED)
    (path,) = folder.glob("*.safetensors")
    with safe_open(path, "pt") as file:
        embedding = file.get_tensor("model.embed_tokens.weight")
    draw = torch.Generator().manual_seed(0)
    others = torch.randint(_SPARED, len(embedding), (_OTHERS,), generator=draw)
    found = {"unused": mean_cosine(embedding[ids]), "others": mean_cosine(embedding[others])}
    return {"count": len(ids), **found} if len(ids) > 1 else {}
