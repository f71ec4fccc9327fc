import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.run import (
    Add,
    Array,
    DropKeys,
    Edit,
    KeepKeys,
    Lookup,
    Mean,
    Replace,
    Resample,
    Site,
    Swap,
    Through,
    Zero,
)  # fmt: skip

KEYS = Array(torch.tensor([[[1, 0], [1, 1]]], dtype=torch.bool), "some keys")
Z, PATTERN = Site(1, "z", 0), Site(1, "pattern", 2)
EDITS: list[Edit] = [
    Mean(Z),
    Mean(Site(0, "mlp_out"), level=True),
    Zero(Z, at=3),
    Resample(Z, 7),
    Swap(Z, (1, 0), at=(4, 2)),
    Swap(Z, None, Array(torch.tensor([[1, 2], [3, 4]]), "corrupted rows")),
    DropKeys(PATTERN, KEYS),
    KeepKeys(PATTERN, KEYS),
    Replace(PATTERN, Array(torch.rand(1, 2, 2), "mean attention")),
    Add(Site(2, "resid_post"), Array(torch.randn(1, 1, 3, dtype=torch.float64), "a probe"), -0.5),
    Add(Z, Array(torch.arange(6.0).reshape(2, 1, 3).to(torch.bfloat16))),
    Through(Site(2, "q_input", 1), Mean(Z)),
    *(
        Lookup(
            Site(0, "mlp_out"),
            reads=Site(0, "resid_mid"),
            weights=Array(torch.randn(4, 2, generator=torch.Generator().manual_seed(1))),
            knots=Array(torch.tensor([[0.0, 1.0, 2.0], [-1.0, 0.0, 1.0]])),
            entries=Array(torch.randn(9, 5, generator=torch.Generator().manual_seed(2)), "entries"),
            linear=linear,
        )
        for linear in (None, Array(torch.randn(3, 5, generator=torch.Generator().manual_seed(3))))
    ),
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_edit_goes_into_a_table_and_back(edit: Edit) -> None:
    again = Edit.from_json(json.loads(json.dumps(edit.to_json())))
    assert again == edit
    assert hash(again) == hash(edit)
    assert str(again) == str(edit)


def test_edits_are_told_apart() -> None:
    assert len(set(EDITS)) == len(EDITS)
    assert len({str(edit) for edit in EDITS}) == len(EDITS)


def test_what_is_no_edit_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"edit must be one of Add, DropKeys, .* got 'Meant'"):
        Edit.from_json({"edit": "Meant"})
    with pytest.raises(ArgumentError, match="sender must come before the receiver, L1H0 q_input"):
        Through(Site(1, "q_input", 0), Mean(Z))
    for late in ("mlp_in", "post", "mlp_out", "resid_post"):
        with pytest.raises(ArgumentError, match="must come before the receiver, L1 mlp_in, got"):
            Through(Site(1, "mlp_in"), Zero(Site(1, late)))
    for other in (Site(-1, "embed"), Site(0, "ln2.hook_scale")):
        with pytest.raises(ArgumentError, match="must be at a head, an FFN or the residual stream"):
            Through(Site(1, "mlp_in"), Zero(other))


def test_arrays_compare_by_content_and_keep_it() -> None:
    numbers = torch.arange(6.0).reshape(2, 3)
    one = Array(numbers, "a")
    numbers += 1
    assert one.tensor[0, 0] == 0
    assert one == Array(torch.arange(6.0).reshape(2, 3), "b")
    assert one != Array(torch.arange(6.0).reshape(3, 2))
    assert one != Array(torch.arange(6.0, dtype=torch.float64).reshape(2, 3))


def attention_without(pattern: Any, dropped: Any, causal: bool) -> Any:
    """Attention without some keys, query by query."""
    result = pattern.clone()
    n = len(pattern)
    for query in range(n):
        seen = range(query + 1) if causal else range(n)
        others = [key for key in seen if not dropped[query, key]]
        if not others:
            continue
        total, left = float(pattern[query].sum()), float(sum(pattern[query, k] for k in others))
        for key in range(n):
            share = pattern[query, key] / left if left > 1e-6 * total else 1 / len(others)
            result[query, key] = total * share if key in others else 0
    return result


@settings(deadline=None)
@given(st.integers(0, 2**16), st.booleans(), st.sampled_from(["softmax", "sharp", "sum above 1"]))
def test_dropped_keys_leave_their_attention_to_the_others(
    seed: int, causal: bool, kind: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(5, 5, dtype=torch.float64, generator=generator)
    scores = scores * (200 if kind == "sharp" else 1)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1) & causal
    pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    pattern = pattern * (3 if kind == "sum above 1" else 1)
    keys = torch.rand(5, 5, generator=generator) < 0.4
    drop, keep = (kind_(PATTERN, Array(keys[None])) for kind_ in (DropKeys, KeepKeys))
    found = drop.instead(pattern[None], (keys[None], causal))[0]
    torch.testing.assert_close(
        found, attention_without(pattern, keys, causal), rtol=1e-9, atol=1e-12
    )
    kept = keep.instead(pattern[None], (keys[None], causal))[0]
    rest = ~keys & keys.any(-1, keepdim=True)
    torch.testing.assert_close(
        kept, attention_without(pattern, rest, causal), rtol=1e-9, atol=1e-12
    )
    all_keys = torch.ones(1, 5, 5, dtype=torch.bool)
    assert torch.equal(keep.instead(pattern[None], (all_keys, causal))[0], pattern)


def test_a_lookup_adds_its_linear_map_to_what_the_table_says() -> None:
    table, both = (one for one in EDITS if isinstance(one, Lookup))
    stream = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(4))
    own = torch.zeros(2, 3, 5)
    added = both.instead(own, stream) - table.instead(own, stream)
    assert both.linear is not None
    for row in range(2):
        for pos in range(3):
            for to in range(5):
                terms = zip(stream[row, pos], both.linear.tensor[:, to], strict=True)
                expected = sum(float(a) * float(b) for a, b in terms)
                assert float(added[row, pos, to]) == pytest.approx(expected, abs=1e-5)
