"""Every kind of source and model: token files, data sets, bridges, our own transformer."""

import json

import numpy as np
import pytest
import torch
from store_models import Echo, TinyTransformer
from torch import nn
from transformer_lens.hook_points import HookPoint

from interp.errors import ArgumentError, HookError, StoreError
from interp.hooks.transformer_lens_adapter import HookedRootModule, TransformerBridge
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.store import ActivationStore, extract, plan_extraction, verify
from interp.store.sources import HuggingFaceRows, TokenFile

SPEC = TransformerSpec(
    d_in=20, d_out=20, n_ctx=12, d_model=8, n_layers=2, n_heads=2, d_head=4, ffn=(16,)
)
LINES = "1 2 3\n4 5\n\n6 7 8\n9 1 2 3\n4 4\n"


def test_token_file_is_bucketed_by_length(tmp_path):
    (tmp_path / "t.txt").write_text(LINES)
    model = SequenceTransformer(SPEC)
    store = extract(model, TokenFile(tmp_path / "t.txt"), ["*.hook_resid_post"], tmp_path / "s")
    assert store.lengths == {2: 2, 3: 2, 4: 1}
    assert store.inputs([0, 2]).tolist() == [[1, 2, 3], [6, 7, 8]]
    assert store.inputs([4, 1]).tolist() == [[4, 4], [4, 5]]
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.tensor([[9, 1, 2, 3]]))
    last = store.activation("blocks.1.hook_resid_post", [3])
    np.testing.assert_allclose(last, cache["blocks.1.hook_resid_post"].numpy(), atol=1e-6)
    assert store.manifest["plan"]["model"]["spec"] == json.loads(json.dumps(SPEC.to_dict()))
    (tmp_path / "bad.txt").write_text("1 2\nthe cat\n")
    with pytest.raises(ArgumentError, match="line 2 must be integers separated by spaces"):
        extract(model, TokenFile(tmp_path / "bad.txt"), ["hook_embed"], tmp_path / "t")


@pytest.mark.parametrize(("line", "told"), [("4 20", "got 20"), ("4 -1", "got -1")])
def test_ids_outside_the_vocabulary_are_refused_by_row(tmp_path, line, told):
    (tmp_path / "t.txt").write_text("1 2 3\n\n5 19\n" + line + "\n")
    model, file = SequenceTransformer(SPEC), TokenFile(tmp_path / "t.txt")
    message = rf"token file t\.txt, row 2 \(from 0\): ids must be 0 to 19.*{told}"
    with pytest.raises(ArgumentError, match=message):
        extract(model, file, ["hook_embed"], tmp_path / "s")
    extract(model, file, ["hook_embed"], tmp_path / "t", rows=2)
    with pytest.raises(ArgumentError, match=rf"arrays, row 1 .*{told}"):
        plan_extraction(model, torch.tensor([[1, 2], [4, int(line[2:])]]), ["hook_embed"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hugging_face_data_sets_stream(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"input_ids": [1, 2, 3], "text": "a b"}, {"input_ids": [4, 5], "text": "c d"}]
    kept = datasets.Dataset.from_list(rows)
    model = SequenceTransformer(SPEC)
    for number, dataset in enumerate((kept, kept.to_iterable_dataset())):
        store = extract(model, dataset, ["hook_embed"], tmp_path / str(number))
        assert store.lengths == {2: 1, 3: 1}
        assert store.inputs([0]).tolist() == [[1, 2, 3]]
    text = HuggingFaceRows(kept, "text", tokenize=lambda t: [ord(c) % 20 for c in t])
    store = extract(model, text, ["hook_embed"], tmp_path / "text")
    assert store.inputs([1]).tolist() == [[ord(c) % 20 for c in "c d"]]
    with pytest.raises(ArgumentError, match="column must be one of the data set's, got 'nope'"):
        extract(model, HuggingFaceRows(kept, "nope"), ["hook_embed"], tmp_path / "no")
    with pytest.raises(ArgumentError, match="holds text: give tokenize"):
        extract(model, HuggingFaceRows(kept, "text"), ["hook_embed"], tmp_path / "no")


def test_arrays_iterables_and_generators(tmp_path):
    model = TinyTransformer()
    whole = Echo().sample(11, seed=0)
    expected = extract(model, whole.inputs, ["hook_embed"], tmp_path / "a").activation("hook_embed")
    batches = [whole[slice(0, 4)], whole[slice(4, 5)], whole[slice(5, 11)]]
    sources = {
        "array": whole.inputs.numpy(),
        "batch": whole,
        "list": batches,
        "generator": (batch for batch in batches),
        "pairs": [(b.inputs, b.targets) for b in batches],
        "mappings": [{"inputs": b.inputs} for b in batches],
    }
    for name, source in sources.items():
        store = extract(model, source, ["hook_embed"], tmp_path / name)
        np.testing.assert_allclose(store.activation("hook_embed"), expected, atol=1e-6)
    assert np.array_equal(ActivationStore(tmp_path / "pairs").targets(), whole.targets.numpy())
    with pytest.raises(StoreError, match="has no targets"):
        ActivationStore(tmp_path / "mappings").targets()
    few = extract(model, batches, ["hook_embed"], tmp_path / "few", rows=6)
    assert few.rows == 6
    with pytest.raises(StoreError, match="ended 9 rows short of rows=20"):
        extract(model, batches, ["hook_embed"], tmp_path / "more", rows=20)
    with pytest.raises(ArgumentError, match="at most the source's 11, got 20"):
        extract(model, whole.inputs, ["hook_embed"], tmp_path / "x", rows=20)
    with pytest.raises(ArgumentError, match="source must be a task"):
        extract(model, 3, ["hook_embed"], tmp_path / "x")


def test_our_transformer_stops_and_conforms(tmp_path):
    model = SequenceTransformer(SPEC)
    tokens = torch.randint(0, 20, (9, 7), generator=torch.Generator().manual_seed(0))
    store = extract(model, tokens, ["*", "!blocks.*.attn.hook_attn_scores"], tmp_path / "s")
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    for hook in store.hooks:
        np.testing.assert_allclose(store.activation(hook), cache[hook].numpy(), atol=1e-6)
    assert "blocks.0.attn.hook_attn_scores" not in store.hooks


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=16, n_positions=32, vocab_size=40,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu")


@pytest.mark.filterwarnings("ignore")
def test_bridge(bridge, tmp_path):
    tokens = torch.randint(0, 40, (10, 7), generator=torch.Generator().manual_seed(0))
    hooks = ["blocks.*.hook_resid_*", "blocks.*.attn.hook_pattern", "blocks.?.hook_out"]
    store = extract(bridge, tokens, hooks, tmp_path / "s", batch=4)
    with torch.no_grad():
        _, cache = bridge.run_with_cache(tokens)
    assert len(store.hooks) == 7
    assert store.aliases["blocks.0.hook_out"] == "blocks.0.hook_resid_post"
    assert store.aliases["blocks.1.hook_resid_pre"] == "blocks.0.hook_resid_post"
    for hook in (*store.hooks, *store.aliases):
        np.testing.assert_allclose(store.activation(hook), cache[hook].numpy(), atol=1e-5)
    with pytest.raises(ArgumentError, match="ids must be 0 to 39, the model's vocabulary, got 40"):
        extract(bridge, tokens + 1, ["hook_embed"], tmp_path / "t")
    with pytest.raises(HookError, match=r"does not fire blocks\.0\.attn\.hook_result"):
        extract(bridge, tokens, ["blocks.*.attn.hook_result"], tmp_path / "t")
    with pytest.raises(HookError, match=r"pos_embed\.hook_in fires shape \[1, 7\] for 2 rows"):
        extract(bridge, tokens, ["pos_embed.hook_in"], tmp_path / "t")
    everything = plan_extraction(bridge, tokens, ["*", "!pos_embed.hook_in"])
    assert len(everything.hooks) > 30
    assert "left out" in everything.describe()


class Odd(HookedRootModule):
    """Hooks of every bad kind."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)
        self.early, self.twice, self.pair = HookPoint(), HookPoint(), HookPoint()
        self.wide = HookPoint()
        self.cfg = None
        self.setup()

    def forward(self, x):
        y = self.early(self.layer(x))
        self.pair((y, y))
        self.wide(y.transpose(1, 2).contiguous())
        return self.twice(self.twice(y + 1))


class Rewriting(HookedRootModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 5)
        self.before, self.after = HookPoint(), HookPoint()
        self.cfg = None
        self.setup()

    def forward(self, x):
        y = self.before(self.layer(x))
        y += 100
        return self.after(y)


def test_tensors_changed_in_place_are_copied_and_are_no_aliases(tmp_path):
    model, x = Rewriting(), torch.randn(5, 4, 3)
    store = extract(model, x, ["before", "after"], tmp_path / "s")
    assert store.hooks == ("before", "after")
    expected = model.layer(x).detach().numpy()
    np.testing.assert_allclose(store.activation("before"), expected, atol=1e-6)
    np.testing.assert_allclose(store.activation("after"), expected + 100, atol=1e-4)


def test_hooks_that_cannot_be_stored_are_refused(tmp_path):
    model, x = Odd(), torch.randn(5, 4, 3)
    with pytest.raises(HookError, match="twice fires 2 times"):
        extract(model, x, ["twice"], tmp_path / "s")
    with pytest.raises(HookError, match="pair fires a tuple"):
        extract(model, x, ["pair"], tmp_path / "s")
    last = extract(model, x, ["early", "wide"], tmp_path / "s", positions="last")
    expected = model.layer(x).detach().numpy()[:, -1:]
    np.testing.assert_allclose(last.activation("early"), expected, atol=1e-6)
    assert last.activation("wide").shape == (5, 5, 1)
    square = nn.Linear(3, 4)
    model.layer = square
    with pytest.raises(ArgumentError, match=r"known position axis, got \['early', 'wide'\]"):
        extract(model, x, ["early", "wide"], tmp_path / "t", positions="last")


@pytest.mark.parametrize("name", ["lzf", "gzip"])
def test_compression_is_lossless(tmp_path, name):
    model, task = TinyTransformer(), Echo(length=32)
    hooks = ["blocks.*.attn.hook_pattern"]
    plain = extract(model, task, hooks, tmp_path / "a", rows=40)
    small = extract(model, task, hooks, tmp_path / "b", rows=40, compression=name)
    for hook in plain.hooks:
        assert np.array_equal(plain.activation(hook), small.activation(hook))
    sizes = [sum(p.stat().st_size for p in s.path.glob("part-*")) for s in (plain, small)]
    assert sizes[1] < sizes[0]
    assert verify(small.path) == []
