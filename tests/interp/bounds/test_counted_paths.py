"""Counters of two layers against every string, one by one."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from certified_models import shaken

from interp.bounds.affine import Arithmetic
from interp.bounds.counted import not_counted, share_right
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer

IDS = np.array([0, 1, 2])
SHAPE: dict[str, Any] = {"d_in": 3, "d_out": 2, "n_ctx": 9, "d_model": 8, "n_layers": 2}
SHAPE |= {"d_head": 4, "positions": "none"}
OPTIONS: list[dict[str, Any]] = [
    {"n_heads": 1},
    {"n_heads": 2, "ffn": (6,), "norm": "layernorm", "activation": "gelu"},
    {"n_heads": (1, 2), "ffn": (6,), "norm": "rmsnorm"},
    {"n_heads": 1, "ffn": (6,), "norm": "layernorm", "norm_final": False, "identity_qk": True},
]


def strings(length: int) -> list[tuple[tuple[int, ...], tuple[int, int, int]]]:
    """Strings that begin with a, and how many a's, b's and blocks they have."""
    found = []
    for rest in product((0, 1), repeat=length - 1):
        word = (0, *rest)
        blocks = 1 + sum(x != y for x, y in pairwise(word))
        found.append((word, (length - sum(word), sum(word), blocks)))
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_a_cell_is_right_only_if_all_its_strings_are(options: dict[str, Any]) -> None:
    proved = alike = 0
    model = shaken(TransformerSpec(**SHAPE | options), 0, 1.5, noise=0.4).double()
    cells: dict[tuple[int, int, int], list[bool]] = {}
    for length in range(1, 7):
        every = strings(length)
        rows = torch.tensor([[0, *(letter + 1 for letter in word)] for word, _ in every])
        with torch.no_grad():
            first = (model(rows)[:, -1].diff(dim=-1)[:, 0] < 0).tolist()
        for (_, cell), answer in zip(every, first, strict=True):
            cells.setdefault(cell, []).append(answer)
    for cell, answers in cells.items():
        most = int(sum(answers) * 2 < len(answers))  # output 1 unless most say 0
        one = np.array([cell]), np.array([most]), [len(answers)]
        share = share_right(model, IDS, *one, Arithmetic())
        assert share in (0.0, 1.0)
        assert share == 0.0 or len(set(answers)) == 1
        proved, alike = proved + int(share), alike + (len(set(answers)) == 1)
    assert proved > 0.3 * alike  # boxes of a random model are large in all directions


def test_what_is_not_covered_is_named() -> None:
    spec = TransformerSpec(**SHAPE | {"positions": "learned", "mask_self": True})
    words = "counts in two layers need no positions, causal attention that sees itself"
    assert not_counted(SequenceTransformer(spec)) == words
    masked = TransformerSpec(**SHAPE | {"identity_qk": True, "identity_mask_self": True})
    assert not_counted(SequenceTransformer(masked)).endswith("a·I that sees itself")


def test_weights_near_the_smallest_numbers_stand_for_nothing() -> None:
    """A point off the path has a score so large that those of the path vanish beside it."""
    model = SequenceTransformer(TransformerSpec(**SHAPE | {"n_heads": 1, "d_head": 1}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E[:, :3] = torch.eye(3)
        first, second = (block.attn for block in model.blocks)
        first.W_V[0, 2, 0], first.W_O[0, 0, 3] = 1.0, 1.0  # the share of b
        second.b_Q[0, 0], second.b_V[0, 0], second.W_O[0, 0, 4] = 1.0, -0.4, 1.0
        second.W_K[0, 3, 0], second.W_K[0, 2, 0] = 4 * 744.5, -744.5
        second.W_V[0, 3, 0], second.W_V[0, 2, 0] = 20.0, -5.0
        model.unembed.W_U[4, 0], model.unembed.b_U[0] = 1.0, 0.3
        ahead = model.double()(torch.tensor([[0, 1, 1, 2]]))[0, -1]
    assert ahead[0] < ahead[1]
    one = np.array([[2, 1, 2]]), np.array([0]), [1]
    assert share_right(model, IDS, *one, Arithmetic()) == 0.0


def test_a_norm_without_an_epsilon_is_no_crash() -> None:
    spec = TransformerSpec(**SHAPE | {"n_heads": 1, "norm": "layernorm", "norm_eps": 0.0})
    one = np.array([[2, 1, 2]]), np.array([0]), [1]
    assert share_right(SequenceTransformer(spec), IDS, *one, Arithmetic()) in (0.0, 1.0)
