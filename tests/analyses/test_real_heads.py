"""The page of real language models is what is written from the kept tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import prooflens as pl
from analyses.pictures.real_heads import falls, keep, page, picture_in_words, read_tables
from prooflens.errors import ArgumentError

DOCS = Path(__file__).parents[2] / "docs"


def test_page_is_written_from_what_is_kept() -> None:
    assert (DOCS / "real-heads.md").read_text(encoding="utf-8") == page(read_tables())


def test_first_picture_says_what_is_kept() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert picture_in_words(read_tables()) in readme


@pytest.mark.parametrize("name", sorted(read_tables()))
def test_confirmed_heads_behave_so_and_are_needed(name: str) -> None:
    roles = pd.DataFrame(read_tables()[name]["roles"]).fillna(
        {"effect": 0.0, "effect_of_group": 0.0}
    )
    heads = roles[(roles["component"] == "head") & (roles["status"] == "confirmed")]
    shares = pd.DataFrame(read_tables()[name]["shares"]).set_index(["layer", "head"])
    keys = {"induction": "after_same", "previous-token": "previous"}
    told = heads[heads["role"].isin(keys)]
    assert len(told)
    for one in told.itertuples():
        assert one.strength >= 0.3, one  # where it acts; over whole rows it may be less
        assert shares.loc[(one.layer, one.head), keys[one.role]] >= 0.2, one
        assert max(one.effect, one.effect_of_group) >= 0.05, one


def test_a_folder_without_an_inspection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="run prooflens inspect"):
        keep(tmp_path)
    (tmp_path / "inspection.json").write_text('{"model": "code-lm"}')
    with pytest.raises(ArgumentError, match="code-lm"):
        keep(tmp_path)


def test_a_fall_is_what_hooks_by_hand_give() -> None:
    readers, writers = [(2, 0)], [{"layer": 0, "head": 3}, {"layer": 0, "head": 0}]
    found = falls("code-lm", readers, writers)
    model = pl.load("code-lm")
    bos: Any = model.card.bos
    tokens = pl.repeated_tokens(
        32, 64, model.cfg.d_vocab, seed=1, bos=None if bos is None or bos < 0 else bos
    )

    def shares(**options: Any) -> np.ndarray[Any, Any]:
        kept: list[torch.Tensor] = []
        name = "blocks.2.attn.hook_pattern"
        hooks = [*options.get("hooks", []), (name, lambda value, hook: kept.append(value[:, 0]))]
        with torch.no_grad():
            model.run_with_hooks(tokens, fwd_hooks=hooks)
        rows = []
        for pattern, row in zip(kept[0].double().tolist(), tokens.tolist(), strict=True):
            each = [
                sum(weights[j + 1] for j in range(i) if row[j] == token)
                for i, (token, weights) in enumerate(zip(row, pattern, strict=True))
                if token in row[:i]
            ]
            rows.append(sum(each) / len(each))
        return np.array(rows)

    for writer in writers:

        def blind(value: torch.Tensor, hook: Any, head: int = writer["head"]) -> torch.Tensor:
            value = value.clone()
            for query in range(1, value.shape[-1]):
                row = value[:, head, query]
                row[:, query - 1] = 0
                value[:, head, query] = row / row.sum(-1, keepdim=True)
            return value

        lost = shares() - shares(hooks=[("blocks.0.attn.hook_pattern", blind)])
        assert found[(0, writer["head"]), (2, 0)]["fall"] == pytest.approx(lost.mean(), abs=1e-3)
    assert found[(0, 3), (2, 0)]["low"] > 0.5 > found[(0, 0), (2, 0)]["high"]
