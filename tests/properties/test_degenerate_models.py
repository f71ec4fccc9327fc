"""Degenerate models through inspect, probe and weights: an answer or a reason, no crash.

Nothing that is confirmed may be of a head that writes nothing, nor of a model whose activations are
not finite.
"""

import contextlib
import importlib
import json
import math
from pathlib import Path

import forked_calls
import pytest
import torch
from degenerate_models import make
from every_command import LOADED
from forked_calls import call

from interp.errors import ArgumentError
from interp.models.checkpoint import load_checkpoint
from interp.models.export import export_gpt2
from interp.models.transformer import SequenceTransformer

STORED = ("--hooks=blocks.*.attn.hook_pattern", "--hooks=blocks.*.hook_resid_post")
COMMANDS = {
    "heads": ("inspect", "ck", "--rows=16", "--out=headed", "--json"),
    "probe": ("probe", "ck", "--rows=24", "--json"),
    "weights": ("weights", "ck", "--json"),
    "extract": ("extract", "ck", "--tokens=ones.txt", *STORED, "--out=st"),
    "heads-store": ("inspect", "st", "--out=headed-store", "--json"),
    "probe-store": ("probe", "st", "--json"),
    "inspect": ("inspect", "gpt2", "--rows=16", "--length=12", "--out=inspected", "--json"),
}
NEEDED = {"extract": "ones.txt", "heads-store": "st", "probe-store": "st", "inspect": "gpt2"}


def wrong(seed: int, home: Path) -> list[str]:
    """What is wrong with the answers about the model of a seed."""
    told = make(seed, home / "ck")
    model = load_checkpoint(home / "ck")
    with contextlib.suppress(ArgumentError):  # most have options that no GPT-2 has
        export_gpt2(model, home / "gpt2")
    found = []
    for name, words in COMMANDS.items():
        if not (home / NEEDED.get(name, "ck")).exists():
            continue
        code, said, seconds = call(home, lambda: None, words)
        if code not in (0, 1, 2) or "Traceback" in said:
            found.append(f"{name} {told}: {code} after {seconds:.1f} s: {said[-400:]}")
        elif name == "heads" and code == 0:
            answer = json.loads(said[said.index('{"lines"') :])
            found += [
                f"{told}: {role}"
                for role in answer["roles"]
                if role["status"] == "confirmed" and not can_play(model, role)
            ]
    return found


def can_play(model: SequenceTransformer, role: dict[str, float | str | None]) -> bool:
    """Whether the component writes anything, and its effect is a number."""
    if not math.isfinite(float(role["effect"] or 0)):
        return False
    if role["component"] != "head":
        return True
    attention = model.blocks[int(role["layer"])].attn
    return bool(attention.W_O[int(role["head"])].any() and attention.W_V[int(role["head"])].any())


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # An inspection draws 27 figures, about ten seconds with shapes checked: asked is an answer.
    monkeypatch.setattr(forked_calls, "SECONDS", 30)
    for module in LOADED:
        importlib.import_module(module)


SEEDS = (0, 3, 5, 6, 7, 18, 26, 43, 50)
"""Every fault, kind of task, number format, norm and FFN of :mod:`degenerate_models`."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_degenerate_models(seed: int, tmp_path: Path) -> None:
    assert not wrong(seed, tmp_path)
