"""Programs in components' places: against hooks by hand, known scores, and known models."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from losses import row_losses
from scipy.interpolate import RegularGridInterpolator
from torch import Tensor

import prooflens as pl
from interp.errors import ArgumentError
from interp.interventions.components import components
from interp.run import Array, Edit, Lookup, Mean, Replace, Run, Site
from interp.tasks.base import Batch
from probes.roles.explanation import explain
from probes.roles.fitting import Fitting
from probes.roles.surrogates import fit_roles
from trained import zoo


def _roles(*rows: tuple[str, int, int, str]) -> pd.DataFrame:
    names = ("component", "layer", "head", "role")
    return pd.DataFrame(rows, columns=names).assign(status="confirmed", target="", group="")


INDUCTION = _roles(
    ("head", 0, 0, "previous-token"), ("head", 1, 0, "induction"), ("head", 1, 0, "copying")
)


def test_an_induction_model_runs_as_three_lines() -> None:
    shipped = zoo.load("induction-attention")
    rows, others = shipped.task.sample(96, seed=1), shipped.task.sample(96, seed=2)
    watched = list[list[Any]]()

    def watch(some: Sequence[Any]) -> Iterable[Any]:
        watched.append([*some])
        return some

    found = explain(shipped.model, INDUCTION, rows, judged=others, watch=watch)
    assert watched == 2 * [list(components(shipped.model))]
    assert found.kept.share > 0.9 > 0.3 > found.others
    assert found.kept.low <= found.kept.share <= found.kept.high
    assert found.own.share == pytest.approx(1.0)
    assert found.unnamed == ()
    text = str(found)
    assert "the token before" in text
    assert "what followed equal tokens" in text
    assert "raises the logit" in text


def test_what_is_kept_follows_from_losses_with_hooks_by_hand() -> None:
    """A head that is named previous-token is run as one, another is at its mean."""
    shipped = zoo.load("induction-attention")
    rows, others = shipped.task.sample(64, seed=1), shipped.task.sample(32, seed=2)
    found = explain(shipped.model, INDUCTION[:1], rows, judged=others)
    _, cache = shipped.model.run_with_cache(rows.inputs)
    told = cache["blocks.0.attn.hook_pattern"][:, 0].double()
    length = told.shape[-1]
    lag = torch.arange(length)[:, None] - torch.arange(length)
    kinds = (lag == 1, lag == 0, (torch.arange(length) == 0) & (lag > 0))
    read = torch.tensor([[row[at:].any() for at in range(length)] for row in rows.mask])
    best = _slow_scores([kind.double() for kind in kinds], told, read.double())
    score = sum(a * kind.double() for a, kind in zip(best, kinds, strict=True))
    pattern = score.masked_fill(lag < 0, -torch.inf).softmax(-1).float()

    def put(value: Tensor, hook: Any, by: Tensor) -> Tensor:
        return by.expand_as(value)

    _, cache = shipped.model.run_with_cache(others.inputs)
    means = {
        layer: partial(put, by=cache[f"blocks.{layer}.attn.hook_z"].mean(0, keepdim=True))
        for layer in (0, 1)
    }

    def loss(hooks: list[Any]) -> float:
        return float(
            row_losses(shipped.model.run_with_hooks(others.inputs, fwd_hooks=hooks), others).mean()
        )

    z = [(f"blocks.{layer}.attn.hook_z", means[layer]) for layer in (0, 1)]
    mine = ("blocks.0.attn.hook_pattern", partial(put, by=pattern))
    none, whole = loss(z), loss([])
    assert found.kept.share == pytest.approx((none - loss([mine, z[1]])) / (none - whole), abs=2e-3)
    assert found.own.share == pytest.approx((none - loss([z[1]])) / (none - whole), abs=1e-5)
    assert found.parts[1].repaired == pytest.approx(
        (none - loss([mine])) / (none - whole), abs=2e-3
    )
    assert found.unnamed == ("L1H0",)


def _slow_scores(kinds: list[Tensor], patterns: Tensor, read: Tensor) -> Tensor:
    """Newton's steps on the cross-entropy at the queries that are read, with autograd's Hessian."""
    pattern = (patterns * read[..., None]).sum(0) / read.sum()
    columns = torch.stack(kinds, -1)
    past = torch.ones_like(pattern, dtype=torch.bool).tril()

    def loss(scores: Tensor) -> Tensor:
        log = (columns @ scores).masked_fill(~past, -torch.inf).log_softmax(-1)
        cross = -(pattern * log.masked_fill(~past, 0.0)).sum()
        return cross + 1e-4 * scores.square().sum()

    scores = torch.zeros(len(kinds), dtype=torch.float64)
    for _ in range(40):
        gradient = torch.autograd.functional.jacobian(loss, scores)
        hessian = torch.autograd.functional.hessian(loss, scores)
        scores = scores - 0.5 * torch.linalg.solve(hessian, gradient)
    return scores


def test_a_table_is_read_in_the_changed_run() -> None:
    """Numbers are read off the stream as it is with other edits made, and mixed as scipy does."""
    shipped = zoo.load("fixed-memory-multiplexer")
    batch = shipped.task.sample(8, seed=1)
    run = Run(shipped.model, batch)
    mid, out = Site(0, "resid_mid"), Site(0, "mlp_out")
    width = shipped.model.cfg.d_model
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(width + 1, 2, generator=generator)
    axes = [torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([0.0, 2.0])]
    knots = torch.stack([axes[0], torch.cat([axes[1], torch.tensor([torch.nan])])])
    entries = torch.randn(6, width, generator=generator)
    edit = Lookup(out, mid, Array(weights), Array(knots), Array(entries))
    other = Mean(Site(0, "z", head=0))
    changed = run.with_(other, edit).at([mid, out])
    numbers = changed[mid] @ weights[:-1] + weights[-1]
    table = RegularGridInterpolator(
        [axis.numpy() for axis in axes], entries.reshape(3, 2, width).numpy()
    )
    inside = numbers.clamp(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 2.0])).numpy()
    np.testing.assert_allclose(changed[out].numpy(), table(inside), atol=1e-5)
    assert not torch.equal(changed[mid], run.at(mid)[mid])
    assert Edit.from_json(edit.to_json()) == edit
    alone = run.with_(edit).value()
    both = torch.stack([*run.rises([edit, other])])[0] + run.value()
    torch.testing.assert_close(alone, both)


def test_scores_of_a_head_without_a_normaliser_are_found() -> None:
    """The attention of the shipped model falls with the lag as its kernel does."""
    shipped = zoo.load("sparse-memory-light")
    batch = shipped.task.sample(32, seed=1)
    run = Run(shipped.model, batch)
    role = next(_roles(("head", 0, 0, "memory-location")).itertuples())
    told = Fitting(role, run, run)
    program = fit_roles("where", [pl.roles.ROLES["local"].surrogate.of(told)], told)
    (edit,) = program.edits(run)
    assert isinstance(edit, Replace)
    pattern = run.at(edit.site)[edit.site].mean(0)
    assert float((edit.values.tensor[0] - pattern).abs().max()) < 0.05 * float(pattern.max())


@pytest.mark.parametrize(("call", "words"), [
    (lambda m, b: explain(m, INDUCTION), "rows must be given for a model without a task"),
    (lambda m, b: explain(m, INDUCTION, b[:10]), "rows must be at least 8 to fit"),
    (lambda m, b: explain(m, pd.DataFrame(), b), "roles must be a role table of find_roles"),
    (lambda m, b: explain(m, _roles(("head", 5, 0, "sink")), b), "roles must be of this model"),
])  # fmt: skip
def test_what_cannot_be_explained_is_refused_in_a_line(call: Any, words: str) -> None:
    shipped = zoo.load("induction-attention")
    batch: Batch = shipped.task.sample(32, seed=1)
    with pytest.raises(ArgumentError, match=words) as refusal:
        call(shipped.model, batch)
    assert "\n" not in str(refusal.value)
