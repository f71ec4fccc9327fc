"""What is measured of a model on another device is what is measured of it in the host's memory.

There is no GPU in CI; the device is pretended (:mod:`another_device`): it holds the host's numbers,
so that tables must be equal, and it refuses what a GPU refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from another_device import Pretended, PretendedDevice, move_model
from torch import nn

import prooflens as pl
from prooflens.tasks import FixedMemory

Act = Callable[[Any, Any], Any]


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    with PretendedDevice():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert there.device.type == "cuda" == (there @ there).device.type
        assert np.array_equal(there.cpu().numpy(), here.numpy())
        assert here.to(there.device).device == there.device == there[here.long()].device
        for refused in (
            lambda: there + here,
            lambda: torch.stack([there, here]),
            lambda: here[there.long()],
            lambda: torch.ones(3, 3) @ there,
        ):
            with pytest.raises(RuntimeError, match="device"):
                refused()
        for array in (lambda: there.numpy(), lambda: np.asarray(there)):
            with pytest.raises(TypeError, match="host"):
                array()


def equal(one: Any, other: Any) -> None:
    """Tables, programs and numbers are the same, to the last bit."""
    if isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other.cpu(), rtol=0, atol=0)
    else:
        assert str(one) == str(other)


def both(name: str, act: Act) -> None:
    """Do the same with a model here and there, and compare."""
    here = pl.load(name)
    found = act(here, here.card.task)
    there = move_model(pl.load(name))
    with PretendedDevice():
        again = act(there, there.card.task)
    assert isinstance(next(there.parameters()), Pretended)  # it was not moved back
    equal(found, again)


def rows(task: Any, seed: int = 3) -> Any:
    return task.sample(24, seed=seed)


INTERVENTIONS: dict[str, Act] = {
    "mean": lambda m, t: pl.ablate(m, rows(t)),
    "zero": lambda m, t: pl.ablate(m, rows(t), how="zero"),
    "resample": lambda m, t: pl.ablate(m, rows(t), how="resample"),
    "patch": lambda m, t: pl.patch(m, rows(t), rows(t, 4)),
    "to the logits": lambda m, t: pl.patch_paths(m, rows(t), "logits"),
    "to the keys": lambda m, t: pl.patch_paths(m, rows(t), pl.interventions.Receiver("k", 1, 0)),
    "attributions": lambda m, t: pl.interventions.attributions(m, rows(t), rows(t, 4).inputs),
    "logits": lambda m, t: pl.interventions.direct_logit_attribution(m, rows(t)),
    "outputs": lambda m, t: torch.stack(
        [x.cpu() for _, x in pl.interventions.ablation_outputs(m, rows(t).inputs)]
    ),
    "locate": lambda m, t: pl.locate(m, t, rows=24),
}


@pytest.mark.parametrize("act", INTERVENTIONS.values(), ids=INTERVENTIONS)
def test_what_is_lost_without_a_part(act: Act) -> None:
    both("induction-mlp", act)


READ: dict[str, Act] = {
    "attention": lambda m, t: pl.attention.attention_table(m, rows(t).inputs),
    "lags": lambda m, t: pl.attention.lag_table(m, rows(t).inputs),
    "copying": lambda m, t: pl.attention.copying_table(
        m,
        pl.attention.read_batches(
            m,
            rows(t).inputs,
            [f"blocks.{i}.attn.hook_{kind}" for i in (0, 1) for kind in ("z", "pattern")]
            + ["ln_final.hook_scale"],
        ),
    ),
    "weights": lambda m, t: pl.weight_table(m),
    "compositions": lambda m, t: pl.weights.composition_table(m, ["k_composition"]),
    "probes": lambda m, t: pl.probe_table(m, rows(t), "blocks.*.hook_resid_post"),
    "roles": lambda m, t: pl.find_roles(m, rows(t)),
    "explanation": lambda m, t: pl.roles.explain(m, pl.find_roles(m, rows(t)), rows(t)),
    "program": lambda m, t: pl.decompile(m, count=100).best,
}


@pytest.mark.parametrize("act", READ.values(), ids=READ)
def test_what_is_read_off_a_model(act: Act) -> None:
    both("induction-mlp", act)


def test_activations_of_another_device_are_stored(tmp_path: Path) -> None:
    def act(model: Any, task: Any) -> Any:
        out = tmp_path / str(next(model.parameters()).device).replace(":", "-")
        pl.extract(model, task, "*hook_z", out, rows=16)
        return pl.open_store(out).activation("blocks.1.attn.hook_z")

    both("induction-mlp", act)


@pytest.mark.slow
def test_an_inspection() -> None:
    both("nested-memory-2-gated", lambda model, task: pl.inspect(model, task=task, count=16).roles)


def test_a_certificate() -> None:
    def act(model: Any, task: Any) -> Any:
        return [(one.strategy, one.bound, one.lemmas) for one in pl.certify(model, task).proofs]

    both("fixed-memory-multiplexer", act)


def test_a_language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp.run.plain.use_onednn", lambda twin: None)  # of the host alone

    def act(model: Any, task: Any) -> Any:
        tokens = pl.repeated_tokens(8, 24, model.cfg.d_vocab, seed=1, bos=0)
        return pl.ablate(model, pl.next_tokens(tokens))

    both("code-lm", act)


def test_agreement_with_a_proof() -> None:
    task = FixedMemory((1,), "parity", 10)
    proof = pl.construct(task)
    found = pl.agree(proof.model, proof, draws=2, random=2)
    with PretendedDevice():
        equal(found.parts, pl.agree(move_model(proof.model), proof, draws=2, random=2).parts)


def test_a_wrapped_module() -> None:
    def act(move: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        layers = nn.Embedding(11, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 11)
        net = move(nn.Sequential(*layers))
        tokens = torch.randint(11, (8, 6), generator=torch.Generator().manual_seed(1))
        model = pl.wrap(net.eval(), example=tokens)
        return pl.ablate(model, pl.next_tokens(tokens))

    found = act(lambda net: net)
    with PretendedDevice():
        equal(found, act(move_model))
