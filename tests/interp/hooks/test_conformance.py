"""The conformance check on our models, on TransformerLens' bridges, and on broken hooks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_transformer import BASE, build, tokens
from torch import Tensor, nn
from transformer_lens.model_bridge import TransformerBridge

from interp.errors import ArgumentError, ConformanceError
from interp.hooks.conformance import ConformanceReport, conformance
from interp.hooks.hooked import HookedModule
from interp.hooks.points import HookPoint
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer


def failed_relations(report: ConformanceReport) -> set[str]:
    return {check.relation for check in report.failures}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A GPT-2 of random weights, through TransformerLens' adapter."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder: Path = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=7, n_positions=9)
    ).save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu")


@pytest.mark.parametrize(
    "name", ["identity", "uneven", "attention only", "no normaliser", "rmsnorm", "bidirectional"]
)
def test_our_models_conform(name: str) -> None:
    model = build(name)
    model.set_use_attn_result(True)
    report = conformance(model, tokens(0), reference=model(tokens(0)).detach())
    assert not report.failures
    assert all(check.status == "pass" for check in report.checks)


@pytest.mark.parametrize(
    "options",
    [
        {"residual": False},
        {"mask_self": True, "identity_ov": True},
        {"positions": "rope", "dtype": "float32"},
        {"input": "real", "score": "scalar_gate", "lag_bias": "lin", "normalizer": "none"},
        {"dtype": "bfloat16"},
    ],
)
def test_other_forms_of_our_models_conform(options: dict[str, Any]) -> None:
    options = BASE | {"d_head": 4, "dtype": "float32"} | options
    model = SequenceTransformer(TransformerSpec(**options))  # type: ignore[arg-type]
    inputs = tokens(0) if model.spec.input == "tokens" else torch.randn(2, 5, 7)
    report = conformance(model, inputs)
    assert not report.failures
    names = {check.relation for check in report.checks if check.status == "pass"}
    assert ("resid_mid = attn_out" in names) == (not model.spec.residual)
    assert ("pattern = exp(scores)" in names) == (model.spec.normalizer == "none")


def test_gpt2_through_the_bridge_reads_right(gpt2: Any) -> None:
    """What is read is right; what is *changed* at resid_mid reaches the FFN alone."""
    reading = conformance(gpt2, tokens(0), changes=False)
    assert not reading.failures
    passed = {check.relation for check in reading.checks if check.status == "pass"}
    assert {"output = reference", "pattern = softmax(scores)", "z = pattern @ v"} <= passed
    changing = conformance(gpt2, tokens(0))
    assert failed_relations(changing) == {
        "resid_post = resid_mid + mlp_out, when hook_resid_mid changes"
    }
    assert [check.where for check in changing.failures] == ["blocks.0", "blocks.1"]


def test_native_bridges_fire_the_pattern_under_the_name_of_the_scores() -> None:
    native = TransformerBridge.boot_native(
        {"d_model": 8, "n_layers": 2, "n_ctx": 9, "d_vocab": 7, "d_mlp": 12, "n_heads": 2,
         "d_head": 4, "act_fn": "relu", "normalization_type": "LN", "seed": 0}
    )  # fmt: skip
    report = conformance(native, tokens(0), changes=False)
    assert failed_relations(report) == {"pattern = softmax(scores)"}
    with pytest.raises(ConformanceError, match=r"native: blocks.0: pattern = softmax\(scores\) \("):
        report.raise_if_failed("native")


class Broken(HookedModule):
    """One sublayer whose hooks can each be made wrong."""

    def __init__(self, **wrong: Any) -> None:
        super().__init__()
        self.cfg, self.wrong = None, wrong
        self.blocks = nn.ModuleList([nn.Module()])
        for kind in ("resid_pre", "attn_out", "resid_mid"):
            setattr(self.blocks[0], f"hook_{kind}", HookPoint())
        self.setup()

    def forward(self, x: Tensor) -> Tensor:
        block = self.blocks[0]
        x = block.hook_resid_pre(x)
        out = x.tanh()
        if self.wrong.get("returns_more"):
            block.hook_attn_out(out)
        else:
            out = block.hook_attn_out(out)
        return block.hook_resid_mid(x + out + self.wrong.get("adds", 0.0))


def test_each_kind_of_fault_is_told_apart() -> None:
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).double()
    assert not conformance(Broken(), x, reference=x + x.tanh()).failures
    plain, changed = "resid_mid = resid_pre + attn_out", ", when hook_attn_out changes"
    assert plain in failed_relations(conformance(Broken(adds=0.1), x))
    assert failed_relations(conformance(Broken(returns_more=True), x)) == {plain + changed}
    assert failed_relations(conformance(Broken(), x, reference=x)) == {"output = reference"}
    assert failed_relations(conformance(Broken(), x, reference=lambda x: x)) == {
        "output = reference"
    }


def test_a_hook_that_distorts_its_own_value_is_named() -> None:
    class Rounding(HookPoint):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.01 * bool(self.fwd_hooks)

    model = Broken()
    model.blocks[0].hook_attn_out = Rounding()
    model.setup()
    report = conformance(model, torch.ones(1, 2, 3))
    own = next(check for check in report.failures if check.where == "model")
    assert own.relation == "patching a hook with its own value changes nothing"


def test_the_report_is_a_table_and_says_what_it_could_not_check() -> None:
    report = conformance(Broken(adds=0.1), torch.ones(1, 2, 3))
    lines = str(report).splitlines()
    assert lines[0].split() == ["relation", "passed", "failed", "unchecked", "worst", "error"]
    row = next(line for line in lines if line.startswith("resid_mid = resid_pre + attn_out  "))
    assert row.split()[-4:-1] == ["0", "1", "0"]
    assert "FAILED blocks.0: resid_mid = resid_pre + attn_out (off by 0.057" in str(report)
    notes = {check.note for check in report.checks if check.relation.startswith("resid_post")}
    assert "no blocks.0.hook_resid_post, blocks.0.hook_mlp_out" in notes


def test_the_mode_of_every_module_is_kept() -> None:
    model = build("plain")
    model.blocks[1].train()
    modes = [module.training for module in model.modules()]
    conformance(model, tokens(0))
    assert [module.training for module in model.modules()] == modes


def test_ids_outside_the_vocabulary_are_refused(gpt2: Any) -> None:
    assert not conformance(gpt2, torch.tensor([[0, 6]]), changes=False).failures
    message = "inputs must be token ids from 0 to 6, the model's vocabulary, got"
    with pytest.raises(ArgumentError, match=f"{message} 7.*{message} -1|{message} -1.*{message} 7"):
        conformance(gpt2, torch.tensor([[7, -1]]))
