"""Two forward passes at once give what one gives, or there is one."""

import threading

import numpy as np
import pytest
import torch
from store_models import Echo, TinyTransformer
from transformers import GPT2Config, GPT2LMHeadModel

from interp.errors import StoreError
from interp.hooks.transformer_lens_adapter import TransformerBridge
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import ActivationStore, extract, verify

HOOKS = ["blocks.*.attn.hook_pattern", "blocks.*.hook_resid_post"]


@pytest.fixture
def threads():
    """Set PyTorch's threads; put back after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def both(model, source, tmp_path, threads, **options):
    """The stores of one lane with one thread and of two lanes with one thread each."""
    found = []
    for count in (1, 2):
        threads(count)
        found.append(extract(model, source, HOOKS, tmp_path / str(count), **options))
    assert [store.manifest["plan"]["lanes"] for store in found] == [1, 2]
    return found


def assert_same_bits(one, two):
    for hook in one.hooks:
        assert np.array_equal(one.activation(hook), two.activation(hook)), hook
    assert np.array_equal(one.inputs(), two.inputs())
    assert verify(two.path) == []


def test_the_same_bits_in_the_same_order(tmp_path, threads):
    one, two = both(TinyTransformer(), Echo(), tmp_path, threads, rows=203, batch=5, part_rows=50)
    assert_same_bits(one, two)
    assert torch.get_num_threads() == 2


def test_our_own_transformer(tmp_path, threads):
    spec = TransformerSpec(
        d_in=3, d_out=2, n_ctx=6, d_model=8, n_layers=2, n_heads=2, d_head=4, ffn=(16,),
        input="real", norm="layernorm", positions="learned",
    )  # fmt: skip
    model = SequenceTransformer(spec, seed=0)
    assert_same_bits(*both(model, Echo(), tmp_path, threads, rows=90, batch=4))


@pytest.mark.filterwarnings("ignore")
def test_a_bridge(tmp_path, threads):
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=40, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    model = TransformerBridge.boot_transformers(str(tmp_path / "gpt2"), device="cpu")
    tokens = torch.randint(0, 40, (60, 9), generator=torch.Generator().manual_seed(0))
    assert_same_bits(*both(model, tokens, tmp_path, threads, batch=4))


class Noting(TinyTransformer):
    """Writes on itself in the middle of a pass, as hooked models do."""

    def forward(self, x):
        self.note = self.embed(x)
        threading.Event().wait(0.001)
        return super().forward(x) + self.note.sum() * 0


def test_notes_of_one_lane_are_not_read_by_the_other(tmp_path, threads):
    assert_same_bits(*both(Noting(), Echo(), tmp_path, threads, rows=60, batch=3))


class Locked(TinyTransformer):
    """Cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Straying(TinyTransformer):
    """A copy's function still fires this one's hooks."""

    def __init__(self):
        super().__init__()
        here = self
        self.run = lambda x: TinyTransformer.forward(here, x)

    def forward(self, x):
        return self.run(x)


@pytest.mark.parametrize("model", [Locked(), Straying()], ids=["locked", "straying"])
def test_what_cannot_be_copied_has_one_lane(tmp_path, threads, model):
    threads(2)
    store = extract(model, Echo(), HOOKS, tmp_path / "s", rows=40, batch=4)
    assert store.manifest["plan"]["lanes"] == 1


class FailsLate(TinyTransformer):
    """Refuses the last rows of the source."""

    def forward(self, x):
        if (x == 7).any():
            raise RuntimeError("seven")
        return super().forward(x)


def test_a_failure_keeps_the_parts_before_it(tmp_path, threads):
    threads(2)
    inputs = torch.randn(40, 6, 3, generator=torch.Generator().manual_seed(0))
    inputs[35] = 7
    with pytest.raises(StoreError, match=r"part 3 \(rows 30\.\.39\): RuntimeError: seven"):
        extract(FailsLate(), inputs, HOOKS, tmp_path / "s", batch=5, part_rows=10)
    assert ActivationStore(tmp_path / "s").rows == 30
    assert torch.get_num_threads() == 2


def test_an_interrupted_store_goes_on_in_as_many_lanes(tmp_path, threads):
    model, options = TinyTransformer(), {"rows": 80, "batch": 5, "part_rows": 20}
    threads(2)
    whole = extract(model, Echo(), HOOKS, tmp_path / "whole", **options)
    store = extract(model, Echo(), HOOKS, tmp_path / "s", **options)
    index = (store.path / "index.jsonl").read_text().splitlines()
    (store.path / "index.jsonl").write_text("\n".join(index[:2]) + "\n")
    again = extract(model, Echo(), HOOKS, tmp_path / "s", resume=True, **options)
    assert_same_bits(whole, again)
    threads(1)
    (store.path / "index.jsonl").write_text("\n".join(index[:2]) + "\n")
    with pytest.raises(StoreError, match="threads was 2, is now 1; lanes was 2, is now 1"):
        extract(model, Echo(), HOOKS, tmp_path / "s", resume=True, **options)
