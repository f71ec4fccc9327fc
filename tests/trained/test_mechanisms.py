"""Shipped models that show a mechanism, and controls that solve the task otherwise.

Judged by exchanging components between rows, which knows nothing of roles.
"""

import pytest
import torch
from pandas import DataFrame

from interp.tasks.base import memories_of
from probes import fresh_models
from probes.locate import HOLDS, holders, locate
from probes.roles import find_roles
from trained.zoo import load

ROWS = 32
SHOWN = {
    "fixed-memory-multiplexer": {"x[t-1]": "L0H1", "x[t-3]": "L0H0"},
    "fixed-memory-table": {"x[t-1]": "L0H1", "x[t-2]": "L0H0", "x[t-4]": "L0H2"},
    "adaptive-memory": {"t_1": "L1H0: attention", "x[t-t_1]": "L1H0"},
    "nested-memory-2": {
        "t_1": "L0H0: attention",
        "token[t-t_1]": "L0H0",
        "t_2": "L1H0: attention",
        "x[t-t_2]": "L1H0",
    },
    "nested-memory-3": {
        "t_1": "L1H0: attention",
        "t_2": "L2H0: attention",
        "t_3": "L3H0: attention",
        "x[t-t_3]": "L3H0",
    },
    "concurrent-memory": {"t_1": "L0H0: attention", "t_2": "L0H1: attention"},
    "sparse-memory-light": {"rho_1*x": "L0 heads"},
    "coupling-rank-2": {"attention": "L0H0: attention"},
    "coupling-rank-6": {"attention": "L0H0: attention"},
    "template-same-different-a": {"label": "L0 heads: identity"},
    "template-copying-b": {"answer": "L0 heads"},
    "induction-attention": {"previous": "L0H0", "source": "L1H0: attention", "answer": "L1H0"},
    "induction-mlp": {"previous": "L0H0", "source": "L1H0: attention", "answer": "L1H0"},
}
"""Model → latent → a component that holds it."""

CONTROLS = {
    "fixed-memory-multiplexer-mixed": ("x[t-1]", "x[t-3]"),
    "adaptive-memory-gated": ("t_1", "x[t-t_1]"),
    "nested-memory-2-gated": ("t_1", "token[t-t_1]", "t_2", "x[t-t_2]"),
    "nested-memory-3-gated": ("t_1", "t_3", "x[t-t_3]"),
    "sparse-memory-light-layers": ("rho_1*x",),
    "coupling-rank-2-layers": ("attention",),
    "coupling-rank-6-layers": ("attention",),
    "depth-L4-layers2-heads": ("E2",),
    "induction-mlp-table": ("previous", "source"),
}
"""Model → latents that no component holds."""


def locate_shipped(name: str, latents: tuple[str, ...]) -> DataFrame:
    shipped = load(name)
    return locate(shipped.model, shipped.test or shipped.task, rows=ROWS, latents=latents)


@pytest.mark.parametrize("name", SHOWN)
def test_the_mechanism_is_where_it_is_said_to_be(name: str) -> None:
    table = locate_shipped(name, tuple(SHOWN[name]))
    found = holders(table).set_index("latent")["where"]
    for latent, component in SHOWN[name].items():
        assert component in found[latent].split(", "), table
    assert table.loc[table["verdict"] == "holds", "p"].max() < 1e-3


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_is_as_accurate_and_holds_none_of_the_latents(name: str) -> None:
    table = locate_shipped(name, CONTROLS[name])
    heads = table[table["heads"].ne("")]
    assert not heads["verdict"].eq("holds").any(), table
    assert load(name).metrics["error"] < 0.01


def test_what_a_gated_memory_holds_instead_is_every_lag_at_once() -> None:
    table = locate_shipped("adaptive-memory-gated", ("window",)).set_index(["component", "circuit"])
    assert table.loc[("L0 heads", "output"), "share"] >= HOLDS


def test_copying_without_b_is_by_weights_that_grew_to_the_identity() -> None:
    name = "template-copying-b-grown"
    shipped, symbols = load(name), range(256, 512)
    assert not shipped.model.spec.identity_ov
    assert "L0H0" in holders(locate_shipped(name, ("answer",)))["where"].item().split(", ")
    factor = shipped.model.blocks[0].attn
    with torch.no_grad():
        tokens = shipped.model.embed.W_E[symbols.start : symbols.stop]
        circuit = tokens @ factor.W_V[0] @ factor.W_O[0] @ tokens.T
    assert circuit.argmax(1).tolist() == list(range(len(symbols))), "of symbols never trained on"


@pytest.fixture
def few_fresh_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_models, "_DRAWS", 100)


@pytest.mark.usefixtures("few_fresh_models")
@pytest.mark.parametrize("name", ["induction-attention", "induction-mlp-table"])
def test_induction_is_confirmed_where_exchange_finds_it(name: str) -> None:
    """Its earlier head gives the token before 0.2 to 0.6: no previous-token head, but read."""
    shipped = load(name)
    roles = find_roles(shipped.model, shipped.task.sample(48, seed=1))
    induction = roles[roles["role"].eq("induction") & roles["status"].eq("confirmed")]
    found = list(zip(induction["layer"], induction["head"], strict=True))
    assert found == ([(1, 0)] if name in SHOWN else [])


@pytest.mark.usefixtures("few_fresh_models")
@pytest.mark.parametrize(
    ("name", "rounds"),
    [("nested-memory-2", [(0, "x[t-t_1]"), (1, "x[t-t_2]")]), ("concurrent-memory", [])],
)
def test_rounds_are_confirmed_where_one_follows_another(
    name: str, rounds: list[tuple[int, str]]
) -> None:
    """Two memories at once are each gone without their location, and neither is a round."""
    shipped = load(name)
    roles = find_roles(
        shipped.model,
        shipped.task.sample(48, seed=1),
        memories=memories_of(shipped.task),
        targets=False,
    )
    found = roles[roles["role"].eq("nested-round") & roles["status"].eq("confirmed")]
    assert list(zip(found["layer"], found["target"], strict=True)) == rounds
