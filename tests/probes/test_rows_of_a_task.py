"""Models of tasks whose targets are their rows' next tokens: which rows they are judged on."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

import prooflens as pl
from interp.errors import ArgumentError
from interp.models.pretrained import Pretrained, load_pretrained
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.tasks.base import Batch
from interp.tasks.catalogue import KINDS, register_task
from probes.inspection.inspected_rows import inspected_rows
from probes.roles.profile import LANGUAGE, TASK
from probes.roles.registry import ROLES
from prooflens.architectures import save_checkpoint
from trained.grid import train
from trained.run import Training, TrainingRun


@dataclass(frozen=True)
class Backwards:
    """Symbols, a bar, and the symbols backwards, whose every token is the next one's target.

    Attributes:
        symbols: How many symbols there are; the bar's id is one above.
        length: How many stand before the bar.
    """

    symbols: int = 6
    length: int = 4

    @property
    def name(self) -> str:
        return "backwards"

    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        generator = torch.Generator().manual_seed(seed)
        word = torch.randint(self.symbols, (n, self.length), generator=generator)
        bar = torch.full((n, 1), self.symbols)
        inputs = torch.cat([word, bar, word.flip(1)[:, :-1]], 1)
        targets, mask = torch.zeros_like(inputs), torch.zeros_like(inputs).bool()
        targets[:, self.length :], mask[:, self.length :] = word.flip(1), True
        return Batch(inputs, targets, mask).to(device)

    def to_dict(self) -> dict[str, object]:
        return {"kind": "backwards", "symbols": self.symbols, "length": self.length}


def spec(outputs: int) -> TransformerSpec:
    return TransformerSpec(
        d_in=7, d_out=outputs, n_ctx=8, d_model=24, n_layers=2, n_heads=2, d_head=12, ffn=(48,),
        positions="learned",
    )  # fmt: skip


def reload(model: SequenceTransformer, folder) -> Pretrained:
    save_checkpoint(model, folder, about={"task": Backwards().to_dict()})
    return load_pretrained(folder)


@pytest.fixture(autouse=True, scope="module")
def _task() -> Iterator[None]:
    register_task("backwards", Backwards)
    yield
    del KINDS["backwards"]


def test_with_fewer_outputs_than_tokens_roles_are_read_on_its_task(tmp_path) -> None:
    """Random rows would have targets that it cannot say, which was refused as if they were the
    user's."""
    model = reload(SequenceTransformer(spec(6), seed=0), tmp_path / "model")
    found = inspected_rows(model, task=Backwards())
    assert found.profile is TASK
    assert found.notes == ("roles are read on rows of its task: 6 outputs do not predict 7 tokens",)
    roles = pl.find_roles(model.model, Backwards().sample(64, seed=1))
    assert set(roles["status"]) <= {"rejected", "candidate"}
    with pytest.raises(ArgumentError, match=r"rows must be given for .*outputs \(6\) are fewer"):
        inspected_rows(model)


def test_a_model_that_random_tokens_bewilder_is_read_on_its_task(tmp_path) -> None:
    run = TrainingRun("backwards", Backwards(), spec(7), Training(steps=400, batch=64))
    model = reload(train([run])[0].model, tmp_path / "trained")
    found = inspected_rows(model, task=Backwards())
    assert found.profile is TASK
    assert "it predicts repeated random tokens worse" in found.notes[0]
    assert inspected_rows(model, task=Backwards(), profile=LANGUAGE).profile is LANGUAGE


def test_one_that_learned_nothing_is_read_as_before(tmp_path) -> None:
    model = reload(SequenceTransformer(spec(7), seed=0), tmp_path / "fresh")
    assert inspected_rows(model, task=Backwards()).profile is LANGUAGE


def test_names_that_no_class_of_keys_has_are_refused() -> None:
    """A misspelt one left the role out without a word."""
    model = pl.load("induction-attention")
    tokens = pl.repeated_tokens(8, 16, 32, seed=0)

    def misspelt(of):
        of.evidence.share(of.evidence.heads[0], "prevous")
        return []

    role = pl.roles.Role(
        name="misspelt", sentence="A head.", behaviours=("x",), causes=("y",), floors=("share",),
        strength="z", source="a test", detectors=(misspelt,), profiles=("language",),
    )  # fmt: skip
    ROLES["misspelt"] = role
    try:
        with pytest.raises(ArgumentError, match=r"keys must be one of previous, .*got 'prevous'"):
            pl.find_roles(model, tokens)
    finally:
        del ROLES["misspelt"]
