from typing import Any

import numpy as np
import pytest
import torch
from by_hooks import mean_outputs, run_without
from losses import row_losses
from torch import Tensor

from interp.errors import ArgumentError
from interp.interventions.ablation_effects import ablate
from interp.interventions.components import Component, components
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run.gate import next_tokens
from interp.stats.nulls import need_null, others_moments, paired_null

GEN = torch.Generator().manual_seed(0)
SPEC = TransformerSpec(
    d_in=6, d_out=6, n_ctx=7, d_model=8, n_layers=2, n_heads=2, d_head=4, ffn=(5,), dtype="float64"
)


def test_table_holds_the_losses_of_single_ablations() -> None:
    model, tokens = SequenceTransformer(SPEC, seed=1), torch.randint(6, (40, 7), generator=GEN)
    batch, parts = next_tokens(tokens), components(model)
    table = ablate(model, batch, rows=40)
    whole, means = row_losses(model(tokens), batch), mean_outputs(model, tokens, parts)
    for part in parts:
        output = run_without(model, tokens, [part], means)
        found = table[
            (table["component"] == part.kind)
            & (table["layer"] == part.layer) & (table["head"] == part.head)
        ]  # fmt: skip
        rise = row_losses(output, batch) - whole
        assert found["score"].item() == pytest.approx(float(rise.mean()))
        assert found["low"].item() < float(rise.mean()) < found["high"].item()
    assert table["component"].value_counts().to_dict() == {"head": 4, "ffn": 2, "layer": 2}


def test_rows_at_a_time_do_not_change_the_scores() -> None:
    model, tokens = SequenceTransformer(SPEC, seed=1), torch.randint(6, (20, 7), generator=GEN)
    part, options = [Component("position", 1, position=2)], {"how": "zero"}
    whole = ablate(model, next_tokens(tokens), part, rows=20, **options)
    pieces = ablate(model, next_tokens(tokens), part, rows=7, **options)
    assert whole["score"].item() == pytest.approx(pieces["score"].item())
    assert whole["target"].item() == "2"


def test_a_component_that_writes_nothing_has_no_effect() -> None:
    model = SequenceTransformer(SPEC, seed=1)
    with torch.no_grad():
        model.blocks[1].attn.W_O[1] = 0
    table = ablate(model, next_tokens(torch.randint(6, (30, 7), generator=GEN)))
    row = table[(table["layer"] == 1) & (table["head"] == 1)].iloc[0]
    assert row["score"] == pytest.approx(0, abs=1e-12)
    assert not row["p"] < 0.01


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        (1, {}, "rows must be two rows at least with how='mean', got 1"),
        (6, {"rows": 1}, "rows must be two rows at least with how='mean', got 1"),
        (6, {"rows": 1, "how": "resample"}, "must be two rows at least with how='resample'"),
        (6, {"rows": 0}, "rows must be at least 1, got 0"),
        (0, {}, "with a row at least"),
    ],
)  # fmt: skip
def test_what_would_give_silent_zeros_is_refused(
    rows: int, options: dict[str, Any], text: str
) -> None:
    tokens = torch.randint(6, (rows, 7), generator=GEN)
    with pytest.raises(ArgumentError, match=text):
        ablate(SequenceTransformer(SPEC), next_tokens(tokens), **options)


def test_a_loss_that_is_not_finite_is_no_zero() -> None:
    batch = next_tokens(torch.randint(6, (8, 7), generator=GEN))
    model = SequenceTransformer(SPEC, seed=1)
    with torch.no_grad():
        model.unembed.b_U[0] = torch.nan
    with pytest.raises(ArgumentError, match="first at the output: look at its weights"):
        ablate(model, batch)


def test_moments_of_pairing_with_others_are_those_of_all_permutations() -> None:
    from itertools import permutations

    paired = torch.randn((5, 5, 2), generator=GEN, dtype=torch.float64)
    rows = torch.arange(5)
    sums = torch.stack([paired[rows, list(order)].sum(0) for order in permutations(range(5))])
    own = paired[rows, rows].sum(0)
    mean, variance = others_moments(paired)
    torch.testing.assert_close(own - mean, (own - sums.mean(0)) * 5 / 4)
    torch.testing.assert_close(variance, sums.var(0, correction=0) * 25 / 16)
    off = [paired[r, s] for r in range(5) for s in range(5) if r != s]
    torch.testing.assert_close(mean, 5 * torch.stack(off).mean(0))


def test_a_loss_that_rises_whatever_the_targets_is_no_need() -> None:
    """Writes of other rows make a model that learned nothing worse on all targets alike."""
    generator = torch.Generator().manual_seed(0)
    clean, away = torch.randn(2, 40, 5, 3, generator=generator)
    targets = torch.randn(40, 5, 3, generator=generator)

    def losses(output: Tensor) -> np.ndarray:
        """Each row's loss with the targets of each row."""
        return (output[:, None] - targets).double().square().mean((-2, -1)).numpy()

    def rises(of: Tensor) -> np.ndarray:
        return losses(of + away) - losses(of)

    assert paired_null(np.diagonal(rises(clean))).p < 1e-6 < 0.05 < need_null([rises(clean)]).p
    assert need_null([losses(0 * targets) - losses(targets)]).p < 1e-6
