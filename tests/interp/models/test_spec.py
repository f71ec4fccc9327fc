import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec

SIZES = {"d_in": 5, "d_out": 5, "n_ctx": 8, "d_model": 4, "n_layers": 2}


def spec(**options: object) -> TransformerSpec:
    return TransformerSpec.from_dict({**SIZES, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "scalar_gate"}, "score scalar_gate cancels under a softmax"),
        ({"score": "slope"}, "slope needs lag_bias lin or log"),
        ({"positions": "rope", "score": "none"}, "rope rotates queries and keys"),
        ({"positions": "rope", "d_head": 3}, "d_head must be even with rope"),
        ({"identity_multiplier": 10.0}, "identity_multiplier has no effect"),
        ({"identity_mask_self": True}, "identity_mask_self has no effect"),
        ({"norm_eps": 0.1}, "norm_eps has no effect with norm none"),
        ({"norm_final": False}, "norm_final has no effect with norm none"),
        ({"activation": "gelu"}, "activation has no effect without an FFN"),
        ({"activation": "pair_sign", "ffn": (3,)}, "ffn must be even for pair_sign"),
        ({"activation": ("relu", "relu"), "ffn": (4,)}, "one entry a hidden layer"),
        ({"n_heads": (1, 2, 3)}, "n_heads must have n_layers = 2 entries"),
        ({"ffn": ((4,),)}, "ffn must have n_layers = 2 entries"),
        ({"tied_unembedding": True, "d_out": 3}, "d_out must equal d_in"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"d_model": 2.5}, "d_model must be of type integer, got 2.5"),
        ({"score": "cosine"}, "score must be one of dot, scalar_gate, slope, none"),
        ({"causal": 1}, "causal must be true or false"),
        ({"residual": False, "n_heads": (2, 0)}, "residual false needs heads"),
        ({"residual": False, "ffn": ((4,), ())}, "residual false needs heads"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        spec(**options)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ArgumentError) as caught:
        spec(d_model=0, score="scalar_gate", identity_multiplier=2.0)
    text = str(caught.value)
    assert "d_model" in text
    assert "scalar_gate" in text
    assert "identity_multiplier" in text


@pytest.mark.parametrize(
    ("name", "used"),
    [("identity_multiplier", {"identity_qk": True}), ("norm_eps", {"norm": "layernorm"})],
)
def test_whole_numbers_of_a_file_are_numbers(name: str, used: dict[str, object]) -> None:
    sizes = {"d_in": 5, "d_out": 5, "n_ctx": 4, "d_model": 4, "n_layers": 1}
    found = getattr(TransformerSpec.from_dict({**sizes, **used, name: 2}), name)
    assert (type(found), found) == (float, 2.0)


def test_unknown_and_missing_keys_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"width must be a known option.*n_ctx must be given"):
        TransformerSpec.from_dict({**{k: v for k, v in SIZES.items() if k != "n_ctx"}, "width": 3})


@given(
    n_heads=st.one_of(st.integers(0, 4), st.tuples(st.integers(0, 4), st.integers(0, 4))),
    ffn=st.one_of(
        st.just(()), st.tuples(st.integers(1, 9)), st.just(((3,), (4, 2))), st.just(((), (2,)))
    ),
    score=st.sampled_from(["dot", "none", "slope"]),
    norm=st.sampled_from(["none", "layernorm", "rmsnorm"]),
    causal=st.booleans(),
)
def test_round_trip_through_json(
    n_heads: object, ffn: object, score: str, norm: str, causal: bool
) -> None:
    made = spec(n_heads=n_heads, ffn=ffn, score=score, norm=norm, causal=causal, lag_bias="lin")
    assert TransformerSpec.from_dict(json.loads(json.dumps(made.to_dict()))) == made
