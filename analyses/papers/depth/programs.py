"""Claim: the stated languages have programs, and transformers, of the stated depths (upper bounds).

L_k at depth k, D_k = L_{2k−1} at depth k with counts of both sides, L_k's prediction problem at
depth k − 2. Each program is run against a regular expression on every short string and on random
longer ones, and each past-only one is compiled and compared with itself at every position. Strings
that were not run stay unseen; the proofs are in the programs' docstrings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.progress import track

from analyses.papers.base import Setting, Verdict
from prooflens.crasp import (
    Program,
    block_word,
    depth,
    evaluate,
    is_past_only,
    membership_program,
    prediction_program,
    two_sided_program,
)
from prooflens.proofs import compile_program, token_ids
from prooflens.tasks import Membership

__all__ = ["run"]

_BATCH = 64


def run(setting: Setting) -> Verdict:
    """Run and compile every program.

    Options: ``blocks``; ``exhaustive`` longest length of which every string is run; ``random``
    strings a seed, of at most ``longest`` symbols.
    """
    todo = list(_programs(setting.options["blocks"]))
    rows = [_row(*item, setting) for item in track(todo, "programs", disable=not setting.progress)]
    table = pd.DataFrame(rows)
    wrong = int(table["wrong_strings"].sum() + table["wrong_positions"].sum())
    deep = int((table["depth"] != table["stated_depth"]).sum())
    bad = wrong + deep + int((table["layers"] != table["stated_depth"])[table["compiled"]].sum())
    status: Any = "not reproduced" if bad else "reproduced"
    words = (
        f"{len(table)} programs on {int(table['strings'].sum())} strings: {wrong} disagreements "
        f"and {deep} programs of another depth. Upper bounds only."
    )
    key = f"{wrong} disagreements on {int(table['strings'].sum())} strings"
    return Verdict(status, words, key, {"programs": table.to_dict("records")}, {"programs": table})


def _programs(blocks: Sequence[int]) -> Iterator[tuple[str, int, int, Program]]:
    """Yield the name, the number of blocks, the stated depth and the program."""
    for k in blocks:
        yield f"L_{k}", k, k, membership_program(k)
        yield f"D_{k}", 2 * k - 1, k, two_sided_program(k)
        if k >= 3:
            yield f"L_{k} prediction", k, k - 2, prediction_program(k)


def _row(name: str, blocks: int, stated: int, program: Program, setting: Setting) -> dict[str, Any]:
    promised = name.endswith("prediction")
    pattern = re.compile("".join(f"{letter}+" for letter in block_word(blocks)))
    strings = _strings(blocks, setting)
    if promised:
        strings = [string for string in strings if pattern.fullmatch(string)]
    run_ = evaluate(program, strings)
    if promised:
        said = run_.values[run_.answer]
        wrong = sum(
            said[row, : len(string)].tolist()
            != [bool(pattern.fullmatch(string[: i + 1])) for i in range(len(string))]
            for row, string in enumerate(strings)
        )
    else:
        truth = np.array([bool(pattern.fullmatch(string)) for string in strings])
        wrong = int((run_.accepted != truth).sum())
    layers, missed = -1, 0
    if is_past_only(program):
        model = compile_program(program, longest=max(map(len, strings))).model
        layers = model.spec.n_layers
        missed = _count_disagreements(model, program, strings)
    return {
        "program": name,
        "stated_depth": stated,
        "depth": depth(program),
        "strings": len(strings),
        "members": sum(bool(pattern.fullmatch(string)) for string in strings),
        "wrong_strings": wrong,
        "compiled": is_past_only(program),
        "layers": layers,
        "wrong_positions": missed,
    }


def _strings(blocks: int, setting: Setting) -> list[str]:
    """Return all short strings, then members of the language, near misses and other strings of
    random lengths."""
    options = setting.options
    short = [
        "".join(s)
        for n in range(1, int(options["exhaustive"]) + 1)
        for s in product("ab", repeat=n)
    ]
    task = Membership(f"L_{blocks}", ((blocks, int(options["longest"])),))
    for seed in setting.seeds:
        batch = task.sample(int(options["random"]), seed=seed)
        last = batch.mask.long().argmax(1)
        for ids, end in zip(batch.inputs, last, strict=True):
            short.append("".join("ab"[int(i) - 1] for i in ids[1 : int(end) + 1]))
    return short


def _count_disagreements(model: Any, program: Program, strings: Sequence[str]) -> int:
    """Return the number of positions at which the compiled model and the program disagree."""
    missed = 0
    for start in range(0, len(strings), _BATCH):
        rows = strings[start : start + _BATCH]
        found = evaluate(program, rows)
        truth = found.values[found.answer]
        with torch.no_grad():
            output = model(token_ids(program, rows))[:, 1:, 0].numpy()
        inside = np.arange(truth.shape[1]) < found.lengths[:, None]
        missed += int(((output != truth) & inside).sum())
    return missed
