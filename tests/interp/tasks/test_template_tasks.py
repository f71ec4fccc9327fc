"""Template tasks against a direct reading of the definition."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from math import perm

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.tasks.template import TemplateTask, random_templates
from interp.tasks.template.task import (
    NAMED,
    canonical,
    copying,
    diversity,
    draw_symbols,
    is_wildcard,
    majority,
    random_task,
    regular_tokens,
    same_different,
    weights,
    wildcards,
)

ODD = TemplateTask(("αxβα", "xαββ", "yyyα"), ("β", "z", "y"), train=(3, 10), test=(12, 20))
TASKS = [*(make() for make in NAMED.values()), ODD, ODD.unseen(),
         random_task(5, 5, wildcards=2, regular=1, symbolic=True, seed=3),
         random_task(4, 4, wildcards=3, seed=1, substitution="zipf", exponent=2.0)]  # fmt: skip


def read_back(task: TemplateTask, row: list[int]) -> tuple[int, dict[str, int]]:
    """The only template and substitution that give a row, found by trying all templates."""
    found = []
    ids = {c: i for i, c in enumerate(task.regular)}
    for index, template in enumerate(task.templates):
        bound: dict[str, int] = {}
        fits = True
        for letter, token in zip(template, row, strict=True):
            if is_wildcard(letter):
                fits &= bound.setdefault(letter, token) == token and token >= len(ids)
            else:
                fits &= ids[letter] == token
        if fits and len(set(bound.values())) == len(bound):
            found.append((index, bound))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_rows_are_what_their_latents_say(task: TemplateTask) -> None:
    batch = task.sample(60, seed=5)
    first, stop = task.train if task.split == "train" else task.test
    assert batch.inputs.shape == (60, task.length)
    assert 0 <= int(batch.inputs.min()) <= int(batch.inputs.max()) < task.vocabulary
    assert not batch.mask[:, :-1].any()
    assert batch.mask[:, -1].all()
    for row in range(60):
        tokens = batch.inputs[row].tolist()
        index, bound = read_back(task, tokens)
        for token in bound.values():
            assert first <= token - len(task.regular) < stop
        assert (batch.latents["template"][row] == index).all()
        expected = [bound[w] for w in wildcards(task.templates[index])]
        width = batch.latents["substitution"].shape[-1]
        padded = expected + [-1] * (width - len(expected))
        assert (batch.latents["substitution"][row] == torch.tensor(padded)).all()
        equality = [[float(a == b) for b in tokens] for a in tokens]
        assert batch.latents["equality"][row].tolist() == equality
        assert task.equality(index).tolist() == equality
        label, target = task.labels[index], batch.targets[row, -1]
        if isinstance(label, str):
            answer = bound[label] if label in bound else task.regular.index(label)
            assert target == answer
            source = tokens.index(answer) if answer in tokens else -1
            assert (batch.latents["source"][row] == source).all()
        else:
            assert target.tolist() == [label]
            assert "source" not in batch.latents


def test_unseen_symbols_are_unseen() -> None:
    task = ODD
    seen, unseen = task.sample(500, seed=1), task.unseen().sample(500, seed=1)
    n = len(task.regular)
    used = [set(b.inputs[b.inputs >= n].tolist()) for b in (seen, unseen)]
    assert not used[0] & used[1]
    counts = Counter(seen.latents["template"][:, 0].tolist())
    assert min(counts.values()) > 120


def test_nothing_depends_on_the_order_of_hashes() -> None:
    code = (
        "from interp.tasks.template.task import NAMED, random_task\n"
        "import hashlib\n"
        "tasks = [f() for f in NAMED.values()]\n"
        "tasks.append(random_task(6, 5, wildcards=3, regular=2, seed=4))\n"
        "text = [(t.to_dict(), t.regular, t.sample(8, seed=3).inputs.tolist()) for t in tasks]\n"
        "print(hashlib.sha256(repr(text).encode()).hexdigest())"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    made = [*(make() for make in NAMED.values()), random_task(6, 5, wildcards=3, regular=2, seed=4)]
    text = [(t.to_dict(), t.regular, t.sample(8, seed=3).inputs.tolist()) for t in made]
    assert done.stdout.strip() == hashlib.sha256(repr(text).encode()).hexdigest()


def test_first_rows_are_the_ones_they_always_were() -> None:
    rows = same_different(train=(0, 8), test=(8, 16)).sample(4, seed=0).inputs
    assert rows.tolist() == [[4, 4], [1, 7], [4, 2], [7, 7]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"templates": ("αβα", "βαβ")}, r"0 \(αβα\) and 1 \(βαβ\) are equivalent"),
        ({"templates": ("ααβ", "αβ")}, "must have one length"),
        ({"templates": ("αα", "α ")}, "must not contain spaces"),
        ({"templates": ()}, "must be texts, at least one"),
        ({"train": (0, 20), "test": (10, 30)}, r"test must be disjoint from train \(0, 20\)"),
        ({"train": (0, 1)}, "train must have a symbol for each of 2 wildcards"),
        ({"test": (70, 71)}, "test must have a symbol for each of 2 wildcards"),
        ({"train": (9, 3)}, "train must be "),
        ({"labels": (1.0,)}, "labels must be one per template"),
        ({"labels": (1.0, "α")}, "labels must be all numbers or all characters"),
        ({"labels": ("α", "γ")}, "must be a wildcard of αβ or a regular token"),
        ({"labels": ("α", "αβ")}, "must be a wildcard of αβ or a regular token"),
        ({"substitution": "normal"}, "substitution must be one of uniform, zipf"),
        ({"exponent": 2.0}, "exponent has no effect without zipf"),
        ({"substitution": "zipf", "exponent": -1.0}, "exponent must be positive"),
        ({"split": "validation"}, "split must be train or test"),
        (
            {"templates": ("αβ", "βα"), "train": (0, 9), "test": (8, 20)},
            r"equivalent.*test must be disjoint from train",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], message: str) -> None:
    good = {"templates": ("αα", "αβ"), "labels": (1.0, -1.0)}
    with pytest.raises(ArgumentError, match=message):
        TemplateTask(**{**good, **change})  # type: ignore[arg-type]


_STRINGS = st.lists(st.sampled_from("αβγxy"), min_size=1, max_size=4).map("".join)


@settings(max_examples=150, deadline=None)
@given(_STRINGS, _STRINGS)
def test_templates_are_equivalent_when_they_share_a_string(one: str, other: str) -> None:
    def strings(template: str) -> set[tuple[str, ...]]:
        names = wildcards(template)
        return {tuple(dict(zip(names, chosen, strict=True)).get(c, c) for c in template)
                for chosen in permutations("ABCD", len(names))}  # fmt: skip

    shared = len(one) == len(other) and bool(strings(one) & strings(other))
    assert (canonical(one) == canonical(other)) == shared
    assert canonical(canonical(one)) == canonical(one)


def test_random_templates_have_the_counts_asked_for() -> None:
    found = random_templates(10, 6, wildcards=3, regular=2, seed=1)
    assert found == random_templates(10, 6, wildcards=3, regular=2, seed=1)
    assert found != random_templates(10, 6, wildcards=3, regular=2, seed=2)
    assert len({canonical(z) for z in found}) == 10
    for z in found:
        assert len(z) == 6
        assert len(wildcards(z)) == 3
        assert sum(not is_wildcard(c) for c in z) == 2
    everything = random_templates(7, 4, wildcards=2, seed=0)
    direct = {canonical("".join(s)) for s in product("αβ", repeat=4) if len(set(s)) == 2}
    assert set(everything) == direct
    with pytest.raises(ArgumentError, match=r"the number of such templates \(7 were found\)"):
        random_templates(8, 4, wildcards=2, seed=0)
    with pytest.raises(ArgumentError, match="must leave a position for every wildcard"):
        random_templates(2, 4, wildcards=3, regular=2)
    assert regular_tokens(("bα", "aβ", "b")) == ("a", "b")


def test_zipf_draws_follow_successive_sampling_and_give_the_diversity() -> None:
    weight = weights("zipf", 5, 1.5)
    drawn = draw_symbols(weight, 40_000, 2, torch.Generator().manual_seed(0))
    pairs = Counter(map(tuple, drawn.tolist()))
    for (i, j), count in pairs.items():
        p = weight[i] * weight[j] / (1 - weight[i])
        assert count / 40_000 == pytest.approx(p, abs=5 * np.sqrt(p / 40_000))
    assert len(pairs) == 20
    for m in (1, 2, 3):
        inside = 0.0
        for order in permutations(range(5), m):
            p, left = 1.0, 1.0
            for k in order:
                p, left = p * weight[k] / left, left - weight[k]
            inside += p * (0 in order)
        assert diversity(weight, m) == pytest.approx(1 / inside, rel=1e-7)
    assert diversity(weights("uniform", 12, 1.0), 3) == 4
    assert copying().diversity == 32
    assert diversity(weight, 0) == np.inf


def test_majority_counts_symbols() -> None:
    task = majority(5, train=(0, 4), test=(4, 8))
    assert len(task.templates) == 16
    batch = task.sample(300, seed=2)
    for row, target in zip(batch.inputs.tolist(), batch.targets[:, -1].tolist(), strict=True):
        assert Counter(row).most_common(1)[0][0] == target
    with pytest.raises(ArgumentError, match="must be odd"):
        majority(4)


def test_zipf_task_is_tested_on_uniform_unseen_symbols() -> None:
    task = same_different(substitution="zipf", exponent=1.5)
    assert task.diversity < same_different().diversity
    assert task.unseen() == replace(same_different(), split="test")


@pytest.mark.parametrize("task", [same_different(), copying(), ODD, ODD.unseen()])
def test_every_string_is_listed_with_its_label(task: TemplateTask) -> None:
    listed = list(task.every_row())
    drawn = task.sample(400, seed=5)
    rows = [tuple(row) for row in drawn.inputs.tolist()]
    answers = drawn.targets[:, -1].reshape(len(rows)).tolist()
    assert set(zip(rows, answers, strict=True)) <= set(listed)
    first, stop = task.train if task.split == "train" else task.test
    numbers = [perm(stop - first, len(wildcards(z))) for z in task.templates]
    assert len(listed) == sum(numbers)
