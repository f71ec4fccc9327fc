import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.errors import ArgumentError, HookError
from interp.hooks.site import stream_site
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.run import Site, ffn_sites, head_sites

KINDS = st.sampled_from(
    ["z", "result", "pattern", "resid_pre", "mlp_out", "pre", "ln1.hook_scale", "score", ":odd"]
)
PIECES = st.sampled_from(
    ["blocks", "0", "00", "12", "attn", "terms", "hook_z", "hook_score", "z", "score", ":", "embed",
     "hook_embed", "mlp", "x", "ln_final", "hook_pattern", ""]
)  # fmt: skip


@given(st.text(min_size=1) | st.lists(PIECES, min_size=1).map(".".join).filter(bool))
def test_every_name_comes_back(name: str) -> None:
    assert Site.of(name).name == name


@given(st.integers(-1, 99), KINDS, st.none() | st.integers(0, 40))
def test_every_site_comes_back(layer: int, kind: str, head: int | None) -> None:
    term = "token" if kind == "score" else None
    known = kind in ("z", "result", "pattern", "score")
    if layer < 0 and (kind not in (":odd", "score") or kind == "score"):
        return  # outside the layers these names mean nothing
    site = Site(layer, kind, head if known else None, term)
    assert Site.of(site.name, site.head).name == site.name
    if kind != ":odd":
        assert Site.of(site.name, site.head) == site


@pytest.mark.parametrize(
    ("site", "name", "short"),
    [
        (Site(3, "z", 2), "blocks.3.attn.hook_z", "L3H2"),
        (Site(3, "pattern", 2), "blocks.3.attn.hook_pattern", "L3H2 pattern"),
        (Site(0, "mlp_out"), "blocks.0.hook_mlp_out", "L0 FFN"),
        (Site(10, "resid_post"), "blocks.10.hook_resid_post", "L10 resid_post"),
        (Site(1, "score", 0, "token"), "blocks.1.attn.terms.token.hook_score",
         "L1H0 score of token"),
        (Site(-1, "embed"), "hook_embed", "hook_embed"),
        (Site(-1, "ln_final.hook_scale"), "ln_final.hook_scale", "ln_final.hook_scale"),
        (Site(2, "ln1.hook_normalized"), "blocks.2.ln1.hook_normalized", "L2 ln1.hook_normalized"),
    ],
)  # fmt: skip
def test_names_are_transformer_lens(site: Site, name: str, short: str) -> None:
    assert (site.name, str(site)) == (name, short)
    assert Site.parse(short) == site
    assert Site.of(name, site.head) == site


def test_every_hook_of_our_models_is_a_site_and_its_head_axis_is_right() -> None:
    spec = TransformerSpec(
        d_in=5, d_out=5, n_ctx=7, d_model=8, n_layers=2, n_heads=3, d_head=4, ffn=(6,),
        positions="learned",
    )  # fmt: skip
    model = SequenceTransformer(spec)
    _, cache = model.run_with_cache(torch.zeros(2, 7, dtype=torch.long))
    for name, value in cache.items():
        site = Site.of(name)
        assert site.name == name
        if site.head_axis is not None:
            assert value.shape[site.head_axis] == 3, name
        assert site.layer < 0 or value.shape[site.position_axis] == 7, name


def test_a_head_is_taken_and_put() -> None:
    value = torch.arange(24.0).reshape(1, 2, 3, 4)
    site = Site(0, "z", 1)
    part = site.take(value)
    assert part.shape == (1, 2, 4)
    changed = site.put(value, -part)
    assert torch.equal(changed[:, :, 1], -part)
    assert torch.equal(changed[:, :, [0, 2]], value[:, :, [0, 2]])
    with pytest.raises(HookError, match="has 3 heads, counted from 0, and no head 3"):
        Site(0, "z", 3).take(value)


def test_what_does_not_go_together_is_refused_at_once() -> None:
    with pytest.raises(ArgumentError, match=r"layer .*; head .*; term "):
        Site(-2, "mlp_out", head=1, term="token")
    with pytest.raises(HookError, match="is a layer, not a place"):
        Site.parse("L3")


def test_sites_of_heads_and_ffns() -> None:
    spec = TransformerSpec(
        d_in=5, d_out=5, n_ctx=7, d_model=8, n_layers=2, n_heads=(2, 1), d_head=4,
        ffn=((6,), ()), identity_ov=True,
    )  # fmt: skip
    model = SequenceTransformer(spec)
    assert [str(site) for site in head_sites(model)] == [
        "L0H0 result",
        "L0H1 result",
        "L1H0 result",
    ]
    assert ffn_sites(model) == (Site(0, "mlp_out"),)
    with pytest.raises(HookError, match="does not say how many layers"):
        head_sites(torch.nn.Linear(2, 2))


def test_a_change_reaches_the_stream_where_its_part_writes() -> None:
    in_attention = ("z", "pattern", "q", "k_input", "rot_k", "result", "attn_in")
    in_ffn = ("mlp_in", "pre", "post", "pre_linear", "mlp.hidden.0.hook_pre")
    for kind in (*in_attention, *in_ffn):
        wanted = Site(2, "attn_out" if kind in in_attention else "mlp_out")
        assert stream_site(Site(2, kind)) == wanted, kind
    assert stream_site(Site(2, "score", 1, "t")) == Site(2, "attn_out")
    for kind in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"):
        assert stream_site(Site(2, kind)) == Site(2, kind)
    for other in (Site(-1, "embed"), Site(2, "ln1.hook_scale"), Site(2, "ln2.hook_normalized")):
        assert stream_site(other) is None
