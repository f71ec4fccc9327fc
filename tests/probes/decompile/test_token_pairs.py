"""Heads that compare tokens by a table of their own are read off; the program says the table."""

from typing import Any

import numpy as np
import torch

from interp.interventions.components import Component
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.program.decision_parser import parse
from interp.program.evaluation import NONE, Vocabulary, run
from interp.program.printer import program_text
from probes.decompile.components import by_pairs
from probes.decompile.rows import TokenRows
from probes.decompile.workflow import decompile

TOKENS = ("a", "b", "c", "d", "<bos>", "<eos>")
PARTNER = {"a": "c", "b": "a", "c": "d", "d": "b"}


def partners() -> Any:
    """Says "a" wherever the token's partner has been seen, and "b" elsewhere; one layer by hand."""
    spec = TransformerSpec(
        d_in=6, d_out=6, n_ctx=40, d_model=7, n_layers=1, n_heads=1, d_head=6, norm="none"
    )
    model = SequenceTransformer(spec, seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.embed.W_E[:, :6] = torch.eye(6)
        block = model.blocks[0].attn
        block.W_Q[0, :6] = 60 * torch.eye(6)
        for here, there in PARTNER.items():
            block.W_K[0, TOKENS.index(there), TOKENS.index(here)] = 1.0
        block.W_K[0, 4] = 0.7  # nothing to see: the first token
        block.W_V[0, :4, 0] = 1.0
        block.W_V[0, 4, 0] = -1.0
        block.W_O[0, 0, 6] = 1.0
        model.unembed.W_U[6, :2] = torch.tensor([1.0, -1.0])
    return model


def strings(count: int) -> TokenRows:
    rng = np.random.default_rng(0)
    tokens = np.full((count, 22), NONE)
    for row in tokens:
        n = int(rng.integers(2, 20))
        row[: n + 2] = [4, *rng.choice(4, n, p=rng.dirichlet(np.ones(4) / 2)), 5]
    asked = (tokens != NONE) & (tokens < 4)
    return TokenRows(tokens, asked, None, Vocabulary(TOKENS), "next token")


def test_a_table_of_two_tokens_is_found_in_a_head() -> None:
    rows = strings(80)
    found = decompile(partners(), rows)
    assert found.answer == "found"
    assert found.best.score == 1.0
    text = program_text(found.best.program)
    assert "partner_l0h0 = table(token)" in text
    for here, there in PARTNER.items():
        assert f'"{here}": "{there}"' in text
    again = run(parse(text), rows.tokens, rows.vocabulary)
    seen = [
        [TOKENS.index(PARTNER.get(TOKENS[t], "a")) in row[: i + 1] for i, t in enumerate(row)]
        for row in rows.tokens.tolist()
    ]
    wanted = np.where(np.array(seen), 0, 1)
    assert (np.asarray(again.chosen) == wanted)[rows.asked].all()


def test_tables_of_two_heads_have_names_of_their_own() -> None:
    spec = TransformerSpec(d_in=6, d_out=6, n_ctx=40, d_model=16, n_layers=1, n_heads=2, d_head=8)
    model = SequenceTransformer(spec, seed=1)
    with torch.no_grad():
        model.blocks[0].attn.W_Q *= 30
        model.blocks[0].attn.W_K *= 30
    rows = strings(16)
    names = [
        {line.name for one in by_pairs(model, rows, head, positions=True) for line in one.lines}
        | {one.name for one in by_pairs(model, rows, head, positions=True)}
        for head in (Component("head", 0, 0), Component("head", 0, 1))
    ]
    assert all(names)
    assert not names[0] & names[1]
