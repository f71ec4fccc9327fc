"""Locating latents by exchange: exact on constructions, silent on what does nothing."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from interp.errors import ArgumentError
from interp.interventions.components import Component
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.proofs.catalogue import construct
from interp.proofs.mechanism import Construction
from interp.proofs.memory import construct_adaptive_memory, construct_fixed_memory
from interp.proofs.template import construct_template
from interp.tasks.coupling import PodCoupling
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.memory import AdaptiveMemory, FixedMemory, RealMemory
from interp.tasks.template.task import majority
from interp.tasks.walks import SuccessorWalk
from probes.exchange import exchangeable
from probes.locate import LOCATE_COLUMNS, holders, locate

ROWS = 48


def groups_of(made: Construction) -> list[list[Component]]:
    """The heads that fetch one memory together."""
    found: dict[str, list[Component]] = {}
    for part in made.mechanism.parts:
        if part.component == "head" and part.head is not None:
            found.setdefault(part.target, []).append(Component("head", part.layer, part.head))
    return list(found.values())


def where(made: Construction, latents: tuple[str, ...] = ()) -> dict[str, set[str]]:
    task = made.task
    table = locate(made.model, task, rows=ROWS, groups=groups_of(made), latents=latents)
    found = holders(table)
    assert not found["others"].any()
    return {row.latent: set(row.where.split(", ")) for row in found.itertuples()}


def test_memories_at_fixed_lags_are_in_their_groups_of_heads() -> None:
    found = where(construct_fixed_memory(FixedMemory((1, 3), "multiplexer", length=8)))
    assert found == {
        "x[t-1]": {"L0H0+1"},
        "x[t-3]": {"L0H2+3+4+5"},
        "memories": {"L0 heads"},
        "f": {"L0 FFN", "L0"},
    }


def test_a_location_is_where_heads_look_and_a_content_is_what_they_fetch() -> None:
    made = construct_adaptive_memory(AdaptiveMemory((1, 2, 4), readout="parity", length=8))
    found = where(made)
    heads = {"L1 heads: attention", "L1 heads: gate"}
    assert found["t_1"] == {"L0 FFN"} | heads
    assert found["x[t-t_1]"] == {"L1 heads"}
    assert found["f"] == {"L1 FFN", "L1"}
    assert found["window"] == {""}


def test_nested_rounds_are_in_the_layers_of_the_proof() -> None:
    made = construct_adaptive_memory(AdaptiveMemory((1, 2), rounds=2, readout="parity", length=8))
    found = where(made, ("t_1", "token[t-t_1]", "a[t-t_1]", "t_2", "x[t-t_2]", "f"))
    assert "L0 FFN" in found["t_1"]
    assert {"L1 heads", "L1"} <= found["token[t-t_1]"]
    assert "L1 FFN" in found["t_2"]
    assert "L2 heads: attention" in found["t_2"]
    assert found["x[t-t_2]"] == {"L2 heads"}
    assert found["f"] == {"L2 FFN", "L2"}


def test_counts_of_a_compiled_program_are_in_their_layers() -> None:
    made = construct(PrefixPrediction("L_4", ((9, 14),)))
    assert made is not None
    assert where(made) == {
        "E2": {"L0H0"},
        "E3_counted": {"L0 FFN", "L0", "L1H0"},
        "E3": {"L0 FFN", "L0", "L1H0"},
        "last": {"L1 FFN", "L1"},
    }


def test_templates_and_couplings() -> None:
    found = where(construct_template(majority(train=(0, 16), test=(16, 32))))
    assert {"L0H0", "L0H0: attention", "L0 FFN", "L1H0: attention"} <= found["source"]
    assert found["answer"] == {"L1H0"}
    made = construct(PodCoupling(rank=2, length=6))
    assert made is not None
    assert where(made) == {"attention": {"L0H0: attention"}, "y": {"L0H0"}}


SPEC = TransformerSpec(
    d_in=1,
    d_out=1,
    n_ctx=6,
    d_model=3,
    n_layers=1,
    n_heads=2,
    d_head=1,
    input="real",
    score="none",
    lag_bias="table",
)


@pytest.fixture(scope="module")
def mixing() -> SequenceTransformer:
    """y = x[t−1]: both heads fetch half of it; head 1 also adds x[t−2], which head 0 takes away."""
    model = SequenceTransformer(SPEC, seed=0)
    attn = model.blocks[0].attn
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[0, 0] = 1.0
        attn.W_V[:, 0, 0] = 1.0
        bias = attn.terms["table"].bias
        bias[:] = -30.0
        bias[:, 1:3] = torch.tensor([[0.0, 0.0], [0.0, -30.0]])
        attn.W_O[:, 0, 1] = torch.tensor([2.0, -1.0])  # 2·(x1 + x2)/2 − x1 = x2 …
        model.unembed.W_U[1, 0] = 1.0
    return model


def test_what_two_heads_make_together_is_in_neither(mixing: SequenceTransformer) -> None:
    """The heads' sum is x[t−2]; head 0 alone carries x[t−1] as well."""
    table = locate(mixing, RealMemory((2,), length=6), rows=ROWS, latents=("x[t-2]",))
    assert tuple(table.columns) == LOCATE_COLUMNS
    found = table.set_index(["component", "circuit"])
    assert found.loc[("L0 heads", "output"), "share"] == pytest.approx(1, abs=1e-6)
    assert found.loc[("L0 heads", "output"), "verdict"] == "holds"
    assert found.loc[("L0 heads", "output"), "p"] < 1e-3  # draws say no less than 1/(10 draws)
    assert found.loc[("L0H0", "output"), "verdict"] == "otherwise"
    assert (found.xs("attention", level="circuit")["verdict"] == "leaves").all()
    assert found.loc[("L0 heads", "output"), "low"] > 0.99


def test_a_shared_memory_is_part_in_each_head(mixing: SequenceTransformer) -> None:
    """Two heads that fetch the same input by halves."""
    with torch.no_grad():
        half = SequenceTransformer(SPEC, seed=0)
        half.load_state_dict(mixing.state_dict())
        half.blocks[0].attn.terms["table"].bias[:, 2] = -30.0
        half.blocks[0].attn.W_O[:, 0, 1] = 0.5
    table = locate(half, RealMemory((1,), length=6), rows=ROWS, latents=("x[t-1]",))
    found = table[table["circuit"] == "output"].set_index("component")
    np.testing.assert_allclose(found.loc[["L0H0", "L0H1"], "share"], 0.75, atol=1e-6)
    assert (found.loc[["L0H0", "L0H1"], "verdict"] == "part").all()
    assert found.loc["L0 heads", "verdict"] == "holds"


def test_a_head_that_looks_there_and_writes_nothing_holds_nothing() -> None:
    made = construct_adaptive_memory(AdaptiveMemory((1, 2), readout="parity", length=8))
    model = SequenceTransformer(made.model.spec)
    model.load_state_dict(made.model.state_dict())
    with torch.no_grad():
        model.blocks[1].attn.W_O.zero_()
    table = locate(model, made.task, rows=ROWS)
    heads = table[(table["layer"] == 1) & (table["heads"] != "")]
    assert heads[heads["component"] != "L1"]["verdict"].eq("leaves").all()


@pytest.mark.parametrize("seed", range(2))
def test_random_weights_hold_nothing(seed: int) -> None:
    task = SuccessorWalk(12, 24, symbols=8)
    spec = TransformerSpec(
        d_in=12, d_out=12, n_ctx=24, d_model=16, n_layers=2, n_heads=2, d_head=8, ffn=(8,)
    )
    table = locate(SequenceTransformer(spec, seed=seed), task, rows=ROWS)
    assert not table["verdict"].eq("holds").any()


def test_arguments_that_do_not_fit_are_refused() -> None:
    model = SequenceTransformer(SPEC)
    task = RealMemory((2,), length=6)
    with pytest.raises(ArgumentError, match=r"must name its variables, got 'membership-L_3'"):
        locate(model, Membership("L_3", ((3, 9),)))
    with pytest.raises(ArgumentError, match=r"must be among x\[t-2\], f, got \['x\[t-9\]'\]"):
        locate(model, task, latents=("x[t-9]",))
    with pytest.raises(ArgumentError, match=r"heads of one layer of the model, got \['L0H9'\]"):
        exchangeable(model, [[Component("head", 0, 9)]])
    with pytest.raises(ArgumentError, match=r"rows must be at least 16, got 3"):
        locate(model, task, rows=3)


def test_the_same_seed_gives_the_same_table() -> None:
    run = partial(locate, SequenceTransformer(SPEC), RealMemory((2,), length=6), rows=20)
    pd.testing.assert_frame_equal(run(seed=3), run(seed=3))
