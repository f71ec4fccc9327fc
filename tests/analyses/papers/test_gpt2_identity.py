"""Identity scalars on a tiny random Hugging Face GPT-2."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from analyses.papers.base import Setting
from analyses.papers.template.gpt2_scalars import add_scalars, language_model, perplexity
from analyses.papers.template.gpt2_templates import pretrained_efficiency
from interp.errors import ArgumentError

CONFIG = GPT2Config(
    vocab_size=50, n_positions=16, n_embd=12, n_layer=2, n_head=3, resid_pdrop=0.0,
    embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
)  # fmt: skip


def tiny() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(CONFIG).eval()


TOKENS = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


def test_nothing_changes_while_the_scalars_are_zero() -> None:
    model = tiny()
    with torch.no_grad():
        before = model(TOKENS, use_cache=False).logits
        scalars = add_scalars(model)
        after = model(TOKENS, use_cache=False).logits
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    assert sum(p.numel() for p in scalars.parameters()) == 2 * 2 * 3
    names = {name for name, _ in model.named_parameters() if "identity" in name}
    assert len(names) == 4


def test_padding_stays_masked() -> None:
    model, plain = tiny(), tiny()
    add_scalars(model)
    mask = torch.ones_like(TOKENS)
    mask[:, 6:] = 0
    with torch.no_grad():
        found = model(TOKENS, attention_mask=mask, use_cache=False).logits
        expected = plain(TOKENS, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(found[:, :6], expected[:, :6], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask_diagonal", [False, True])
@pytest.mark.parametrize("undivided", [False, True])
def test_scores_and_output_are_those_of_a_direct_loop(mask_diagonal: bool, undivided: bool) -> None:
    model, share = tiny(), 1 if undivided else 12
    scalars = add_scalars(model, multiplier=2.0, mask_diagonal=mask_diagonal, undivided=undivided)
    with torch.no_grad():
        scalars[0].a.copy_(torch.tensor([0.5, -1.0, 0.0]))
        scalars[0].b.copy_(torch.tensor([0.3, 0.0, -0.2]))
    attn = model.transformer.h[0].attn
    x = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        found = attn(x)[0]
        q, k, v = attn.c_attn(x).split(12, dim=-1)
        heads, added = [], torch.zeros(5, 12)
        for h in range(3):
            part = slice(4 * h, 4 * h + 4)
            a, b = 2 * float(scalars[0].a[h]), 2 * float(scalars[0].b[h])
            pattern = torch.zeros(5, 5)
            for t in range(5):
                scores = torch.stack([
                    q[0, t, part] @ k[0, j, part] / 2
                    + (a * (x[0, t] @ x[0, j]) / share if not (mask_diagonal and j == t) else 0)
                    for j in range(t + 1)
                ])  # fmt: skip
                pattern[t, : t + 1] = scores.softmax(0)
            heads.append(pattern @ v[0, :, part])
            added += b * pattern @ x[0]
        expected = attn.c_proj(torch.cat(heads, dim=-1)) + added
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)


def test_heads_of_a_llama_that_share_keys_get_scalars_of_their_own() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 4}
    config = LlamaConfig(vocab_size=50, num_attention_heads=4, num_key_value_heads=2, **sizes)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    seen: dict[str, torch.Tensor] = {}
    attention: Any = model.model.layers[1].self_attn
    attention.q_proj.register_forward_hook(lambda _m, args, _o: seen.update(x=args[0]))
    attention.o_proj.register_forward_hook(lambda _m, args, _o: seen.update(z=args[0]))
    with torch.no_grad():
        before = model(TOKENS, use_cache=False).logits
        scalars = add_scalars(model, multiplier=2.0)
        attention.register_forward_hook(lambda _m, _a, out: seen.update(out=out[0], pattern=out[1]))
        torch.testing.assert_close(model(TOKENS, use_cache=False).logits, before)
        plain = dict(seen)
        scalars[1].a.copy_(torch.tensor([0.5, -1.0, 0.0, 2.0]))
        scalars[1].b.copy_(torch.tensor([0.3, 0.0, -0.2, 0.1]))
        model(TOKENS, use_cache=False)
        x = plain["x"]
        products = x @ x.mT / 12
        for h, a in enumerate((0.5, -1.0, 0.0, 2.0)):
            expected = plain["pattern"][:, h].log() + 2 * a * products
            pattern = expected.softmax(-1)
            torch.testing.assert_close(seen["pattern"][:, h], pattern, rtol=1e-4, atol=1e-6)
            values = attention.v_proj(x)[..., 4 * (h // 2) : 4 * (h // 2) + 4]
            z = seen["z"][..., 4 * h : 4 * h + 4]
            torch.testing.assert_close(z, pattern @ values, rtol=1e-4, atol=1e-5)
        mixed = torch.einsum("h,bhqk->bqk", 2 * scalars[1].b, seen["pattern"]) @ x
        torch.testing.assert_close(seen["out"], attention.o_proj(seen["z"]) + mixed)


def test_a_cache_and_other_models_are_refused() -> None:
    model = tiny()
    add_scalars(model)
    with torch.no_grad():
        cache = model(TOKENS[:, :4], use_cache=True).past_key_values
        with pytest.raises(ArgumentError, match="use_cache=False"):
            model(TOKENS[:, 4:5], past_key_values=cache)
    with pytest.raises(ArgumentError, match="must have no scalars yet"):
        add_scalars(model)
    with pytest.raises(ArgumentError, match="must be a Hugging Face GPT-2"):
        add_scalars(torch.nn.Linear(2, 2))


def test_perplexity_is_exp_of_the_mean_loss() -> None:
    model = tiny()
    tokens = TOKENS.flatten()
    with torch.no_grad():
        losses = [model(tokens[i : i + 6][None], labels=tokens[i : i + 6][None]).loss
                  for i in (0, 6, 12)]  # fmt: skip
    assert perplexity(model, tokens, 6) == pytest.approx(float(torch.stack(losses).mean().exp()))


def setting(tmp_path: Path, **options: object) -> Setting:
    return Setting("quick", (0,), {"model": "", "text": "", **options}, tmp_path)


def test_without_the_users_files_the_claims_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trained.zoo.stand_in", lambda: None)
    verdict = language_model(setting(tmp_path))
    assert verdict.status == "not run"
    assert "model and text" in verdict.words
    assert pretrained_efficiency(setting(tmp_path)).status == "not run"


def test_without_them_the_claims_run_on_the_shipped_language_model(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**CONFIG.to_dict(), "vocab_size": 300, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path)
    monkeypatch.setattr("trained.zoo.stand_in", lambda: tmp_path)
    monkeypatch.setattr("analyses.papers.template.gpt2_scalars._unseen", lambda: text)
    options = {"steps": 1, "every": 1, "batch": 2, "length": 64, "learning_rate": 1e-3,
               "multiplier": 1.0, "mask_diagonal": False}  # fmt: skip
    verdict = language_model(setting(tmp_path, **options))
    assert verdict.words.startswith("On code-lm, perplexity")
    assert set(verdict.tables["perplexity"]["model"]) == {"code-lm", "code-lm + a, b"}
    options = {"rows": [8], "steps": 1, "batch": 4, "learning_rate": 1e-3, "symbols": 5000}
    verdict = pretrained_efficiency(setting(tmp_path, **options))
    assert verdict.words.startswith("On code-lm, strings needed")
    assert set(verdict.numbers["accuracy"]) == {"pretrained 8", "from scratch 8"}
