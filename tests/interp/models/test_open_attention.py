"""PyTorch's own attention, opened: PyTorch's results are the oracle, loops over heads the other."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import prooflens as pl
from interp.errors import ArgumentError, ConformanceError
from interp.models.open_attention import OpenAttention, encoder_names, open_attention

ROWS, POSITIONS, WIDTH, HEADS, TOKENS = 3, 5, 8, 2, 11


class Net(nn.Module):
    """A language model as people write it with PyTorch's encoder."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 12, **{"batch_first": True, **options})
        self.embed = nn.Embedding(TOKENS, WIDTH)
        nested = layer.self_attn.batch_first and not layer.norm_first
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.out = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        n = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.out(self.encoder(self.embed(tokens), mask=mask, is_causal=True))


def tokens(rows: int = ROWS) -> Tensor:
    return torch.randint(TOKENS, (rows, POSITIONS), generator=torch.Generator().manual_seed(1))


@settings(max_examples=60, deadline=None)
@given(
    batch_first=st.booleans(), bias=st.booleans(), own=st.booleans(), average=st.booleans(),
    mask=st.sampled_from(["none", "bool", "float", "heads"]), padded=st.booleans(),
    one_row=st.booleans(),
)  # fmt: skip
def test_every_form_gives_what_pytorch_gives(
    batch_first: bool, bias: bool, own: bool, average: bool, mask: str, padded: bool, one_row: bool
) -> None:
    torch.manual_seed(0)
    sizes = {"kdim": 6, "vdim": 7} if own else {}
    closed = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=batch_first, **sizes).eval()
    for parameter in closed.parameters():
        nn.init.normal_(parameter)
    keys = 4
    shapes = [(ROWS, POSITIONS, WIDTH), (ROWS, keys, 6), (ROWS, keys, 7)]
    given_ = [torch.randn(*s[:2], s[2] if own else WIDTH) for s in shapes]
    options: dict[str, Any] = {"average_attn_weights": average}
    allowed = torch.ones(POSITIONS, keys).tril().bool()
    if mask == "bool":
        options["attn_mask"] = ~allowed
    elif mask == "float":
        options["attn_mask"] = torch.randn(POSITIONS, keys)
    elif mask == "heads":
        rows = HEADS if one_row else ROWS * HEADS
        options["attn_mask"] = torch.randn(rows, POSITIONS, keys)
    if padded:
        hidden = torch.zeros(ROWS, keys, dtype=torch.bool)
        hidden[:, -1] = True
        if mask in ("float", "heads"):
            hidden = torch.zeros(ROWS, keys).masked_fill(hidden, -torch.inf)
        options["key_padding_mask"] = hidden[0] if one_row else hidden
    if one_row:
        given_ = [x[0] for x in given_]
    elif not batch_first:
        given_ = [x.transpose(0, 1) for x in given_]
    expected, weights = closed(*given_, **options)
    found, seen = open_attention(closed)(*given_, **options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(seen, weights)
    assert open_attention(closed)(*given_, **options, need_weights=False)[1] is None


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_is_wrapped_without_names(norm_first: bool, training: bool) -> None:
    module = Net(norm_first=norm_first, dropout=0.0).train(training)
    expected = module(tokens())
    model = pl.wrap(module, example=tokens(2))
    torch.testing.assert_close(model(tokens()), expected)
    with torch.no_grad():  # where the original takes its fused path
        torch.testing.assert_close(model(tokens()), module(tokens()))
    _, cache = model.run_with_cache(tokens())
    attention = module.encoder.layers[1].self_attn
    x = cache["blocks.1.hook_resid_pre"]
    x = module.encoder.layers[1].norm1(x) if norm_first else x
    causal = torch.ones(POSITIONS, POSITIONS).triu(1).bool()
    _, weights = attention(x, x, x, attn_mask=causal, average_attn_weights=False)
    torch.testing.assert_close(cache["blocks.1.attn.hook_pattern"], weights)
    named = set(model.hook_dict)
    assert ("blocks.0.hook_resid_mid" in named) is norm_first
    assert model.report is not None
    assert not model.report.failures


def test_the_copy_has_the_parameters_themselves_and_the_original_is_untouched() -> None:
    module = Net()
    before = {name: type(part) for name, part in module.named_modules()}
    found = open_attention(module)
    assert {name: type(part) for name, part in module.named_modules()} == before
    assert dict(found.named_parameters()).keys() == dict(module.named_parameters()).keys()
    for name, value in found.named_parameters():
        assert value is module.get_parameter(name)
    assert sum(isinstance(part, OpenAttention) for part in found.modules()) == 2


def test_heads_of_an_encoder_get_roles() -> None:
    model = pl.wrap(Net().eval(), example=tokens(2))
    rows = pl.next_tokens(tokens(16))
    roles = pl.find_roles(model, rows)
    assert set(roles["status"]) <= {"confirmed", "candidate", "rejected"}
    effects = pl.ablate(model, rows)
    assert len(effects[effects["component"] == "head"]) == 4


def test_what_cannot_be_opened_or_named_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match="closed must not append keys, got 'MultiheadAttention'"
    ):
        open_attention(nn.MultiheadAttention(4, 2, add_zero_attn=True))
    with pytest.raises(ArgumentError, match="names must map at least one hook"):
        pl.wrap(nn.Linear(2, 2))
    assert encoder_names(nn.Linear(2, 2)) == {}


def test_what_a_module_returns_is_one_tensor_by_position_or_output_says_which() -> None:
    names = {"hook_embed": "embed"}

    class Both(Net):
        def forward(self, tokens: Tensor) -> Any:
            return super().forward(tokens), self.out.weight

    class Last(Net):
        def forward(self, tokens: Tensor) -> Any:
            return super().forward(tokens)[:, -1]

    shown = r"output must name the one tensor .*a tuple with tensors \{0: \(2, 5, 11\), 1: .*give "
    with pytest.raises(ArgumentError, match=shown + "output=0"):
        pl.wrap(Both(), names, example=tokens(2))
    assert pl.wrap(Both(), names, example=tokens(2), output=0)(tokens()).shape == (3, 5, 11)
    advice = (
        r"output must be \[row, pos, …\].*\(2, 5\), got \(2, 11\).*out\[:, None\].expand\(-1, 5"
    )
    with pytest.raises(ArgumentError, match=advice):
        pl.wrap(Last().eval(), names, example=tokens(2))
    rows = pl.next_tokens(tokens(8))
    last = pl.Batch(rows.inputs, rows.targets.roll(1, 1), torch.zeros_like(rows.mask))
    last.mask[:, -1] = True
    effects = pl.ablate(pl.wrap(Net().eval(), example=tokens(2)), last)
    spread = pl.wrap(
        Last().eval(), example=tokens(2), output=lambda out: out[:, None].expand(-1, POSITIONS, -1)
    )
    assert len(pl.ablate(spread, last)) == len(effects)
    assert spread(tokens()).shape == (3, 5, 11)


def test_a_wrong_mapping_says_what_to_do() -> None:
    module = open_attention(Net(norm_first=True).eval())
    names = encoder_names(module)
    wrong = names | {"blocks.0.hook_resid_mid": "encoder.layers.0.norm2:in"}
    with pytest.raises(ConformanceError, match=r"What to do: changing hook_resid_mid .*':read'"):
        pl.wrap(module, wrong, example=tokens(2))
    wrong = names | {"blocks.1.attn.hook_pattern": "encoder.layers.1.self_attn.scores"}
    wrong.pop("blocks.1.attn.hook_attn_scores")
    with pytest.raises(ConformanceError, match=r"hook_pattern is what the softmax returns"):
        pl.wrap(module, wrong, example=tokens(2))
