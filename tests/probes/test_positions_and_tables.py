"""Heads that attend by position, and FFNs that are tables, against models that are written down."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch import Tensor

from interp.hooks.capture import evaluating
from interp.interventions.components import Component
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run import Mean, Resample, Run, Site
from interp.tasks.base import Batch
from probes.roles import TASK, find_roles
from probes.roles.effects import Effects
from probes.roles.ffn_tables import short_tables
from probes.roles.gathering import evidence_of
from probes.roles.turned import beyond_turned

LENGTH, SHARES = 9, (0.4, 0.35, 0.25)
"""Attention of the planted head to the positions one, two and three back."""


def _averager(
    targets: str = "average", *, by_content: bool = False
) -> tuple[Batch, SequenceTransformer]:
    """One head that averages the first channel over three lags, or by what a key holds in the
    second, and rows that ask for that average."""
    spec = TransformerSpec(
        2,
        1,
        LENGTH,
        8,
        n_layers=1,
        n_heads=1,
        d_head=2,
        ffn=(),
        input="real",
        lag_bias="table",
        score="dot" if by_content else "none",
        dtype="float64",
    )
    model = SequenceTransformer(spec, seed=1).eval()
    x = torch.randn(96, LENGTH, 2, generator=torch.Generator().manual_seed(2)).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.W_E[[0, 1], [0, 1]] = 1.0
        attn = model.blocks[0].attn
        attn.W_V[:, 0, 0] = 1.0
        attn.W_O[:, 0, 4] = 1.0
        model.unembed.W_U[4] = 1.0
        if by_content:
            attn.W_K[:, 1, 0] = 6.0
            attn.b_Q[:, 0] = 1.0
        else:
            table = attn.terms["table"].bias
            table.fill_(-40.0)
            for lag, share in enumerate(SHARES, 1):
                table[0, lag] = torch.tensor(share).log()
    with torch.no_grad():
        own = model(x)
    mask = torch.ones(96, LENGTH, dtype=torch.bool)
    mask[:, :4] = False
    return Batch(
        x.float(), own.float() if targets == "average" else x[..., :1].float(), mask
    ), model


def test_a_head_that_averages_over_lags_is_positional() -> None:
    rows, model = _averager()
    roles = find_roles(model, rows, profile="task")
    heads = roles[(roles["component"] == "head") & (roles["status"] == "confirmed")]
    assert "positional" in set(heads["role"])
    row = heads[heads["role"] == "positional"].iloc[0]
    assert row["strength"] == pytest.approx(1.0, abs=1e-3)


def test_a_head_that_looks_by_content_or_that_no_answer_needs_is_not() -> None:
    for rows, model in (_averager(by_content=True), _averager(targets="own input")):
        roles = find_roles(model, rows, profile="task")
        confirmed = roles[roles["status"] == "confirmed"]
        assert "positional" not in set(confirmed["role"])


def test_attention_by_content_over_values_that_are_alike_is_not_positional() -> None:
    """Any attention does what it does, since a row's values are all the same."""
    rows, model = _averager(by_content=True)
    inputs = rows.inputs.clone()
    inputs[..., 0] = inputs[:, :1, 0]
    with torch.no_grad():
        targets = model(inputs.double()).float()
    roles = find_roles(model, Batch(inputs, targets, rows.mask), profile="task")
    assert "positional" not in set(roles["role"])


def test_rows_without_scored_positions_may_come_first() -> None:
    rows, model = _averager()
    mask = rows.mask.clone()
    mask[:40] = False
    roles = find_roles(model, replace(rows, mask=mask), profile="task")
    confirmed = roles[roles["status"] == "confirmed"]
    assert "positional" in set(confirmed["role"])


def test_what_is_kept_is_of_all_rows() -> None:
    """Against both changes over all rows, by hand; few rows are enough for other tests."""
    rows, model = _averager()
    many = Batch(*(torch.cat([one] * 8) for one in (rows.inputs, rows.targets, rows.mask)))
    scale = torch.where(torch.arange(len(many)) % 30 == 0, 6.0, 1.0)[:, None, None]
    many = replace(many, inputs=many.inputs * scale)
    site = Site(0, "z", 0)
    without, edits = (Resample(site, 3),), (Mean(site),)
    with evaluating(model):
        effects = Effects(evidence_of(model, many, TASK))
        found = effects.kept_output(without, edits, "kept", 0.5)
        run = Run(model, many)
        clean, gone, left = (
            run.with_(*some).value(lambda output, targets: output[..., 0])[many.mask].double()
            for some in ((), without, edits)
        )
    expected = 1 - (left - clean).square().mean() / (gone - clean).square().mean()
    assert found.score == pytest.approx(float(expected), rel=1e-3)
    assert 0.2 < found.score < 0.8


def test_without_targets_it_is_said_that_nothing_can_rise() -> None:
    rows, model = _averager()
    roles = find_roles(model, rows, profile="task", targets=False)
    assert "loss" in roles.attrs["lacks"]["positional"]


def test_a_head_that_the_output_reads_is_beyond_its_own_write_turned() -> None:
    """And not where targets have nothing to do with it: the loss is lower with some rotations."""
    rows, model = _averager()
    noise = torch.randn(rows.targets.shape, generator=torch.Generator().manual_seed(5))
    for targets, needed in ((rows.targets, True), (noise, False)):
        asked = replace(rows, targets=targets)
        with evaluating(model):
            effects = Effects(evidence_of(model, asked, TASK))
            part = Component("head", 0, 0)
            assert (beyond_turned(effects, part, asked=True).p < 0.003) == needed
            assert beyond_turned(effects, part, asked=False).p == 1.0


def _tokens(seed: int, count: int = 400) -> Tensor:
    return torch.randint(4, (count, 6), generator=torch.Generator().manual_seed(seed))


def test_tables_of_half_the_rows_say_what_the_other_half_writes() -> None:
    """An FFN of the token alone, and one of the token and of how often it came: against means over
    the rows of the other half with equal tokens."""
    spec = TransformerSpec(d_in=4, d_out=3, n_ctx=6, d_model=12, n_layers=1, n_heads=0, ffn=(24,))
    model = SequenceTransformer(spec, seed=3).eval()
    tokens = _tokens(4)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    run, site = Run(model, Batch(tokens, tokens % 3, mask)), Site(0, "mlp_out")
    written = run.at([site])[site].double()
    _, _, (names, said) = islice(short_tables(run, 0, {}, 4), 3)
    assert {name.split()[1] for name in names} == {"token"}
    assert len(names) == 3  # which of four tokens it is
    first = torch.arange(len(tokens)) % 2 == 0
    for half in (first, ~first):
        for token in range(4):
            here, there = tokens[half] == token, tokens[~half] == token
            mean = written[~half][there].mean(0)
            assert (said[half][here] - mean).abs().max() < 1e-2 * written.std()
