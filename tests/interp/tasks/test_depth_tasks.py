"""Depth tasks against regular expressions, brute-force lists and direct loops."""

import re
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.program.analysis import depth
from interp.program.evaluation import evaluate
from interp.program.languages import membership_program, subsequence_program, two_sided_program
from interp.proofs.depth.compiler import token_ids
from interp.tasks.depth import Membership, PrefixPrediction
from interp.tasks.depth.languages import language
from interp.tasks.depth.strings import letters_of, prefixes


def is_balanced(string: str) -> bool:
    heights = np.cumsum([1 if c == "(" else -1 for c in string])
    return bool(heights.min() >= 0 and heights[-1] == 0)


def blocks(k: int) -> str:
    return "".join(f"{'ab'[i % 2]}+" for i in range(k))


ORACLES = {
    "L_1": ("ab", lambda s: bool(re.fullmatch(blocks(1), s))),
    "L_2": ("ab", lambda s: bool(re.fullmatch(blocks(2), s))),
    "L_4": ("ab", lambda s: bool(re.fullmatch(blocks(4), s))),
    "L_5": ("ab", lambda s: bool(re.fullmatch(blocks(5), s))),
    "D_1": ("ab", lambda s: bool(re.fullmatch(blocks(1), s))),
    "D_2": ("ab", lambda s: bool(re.fullmatch(blocks(3), s))),
    "D_3": ("ab", lambda s: bool(re.fullmatch(blocks(5), s))),
    "J_aba": ("ab", lambda s: bool(re.search("a.*b.*a", s))),
    "J_aabba": ("ab", lambda s: bool(re.search("a.*a.*b.*b.*a", s))),
    "J_a": ("ab", lambda s: "a" in s),
    "J_cab": ("abc", lambda s: bool(re.search("c.*a.*b", s))),
    "dyck-1": ("()", is_balanced),
    "majority": ("ab", lambda s: s.count("a") > s.count("b")),
    "anbncn": ("abc", lambda s: len(s) > 0 and s == "".join(c * (len(s) // 3) for c in "abc")),
}
SHORT = {"ab": 9, "()": 9, "abc": 6}


def every_string(letters: str, length: int) -> list[str]:
    return ["".join(tokens) for tokens in product(letters, repeat=length)]


def texts(codes: np.ndarray, letters: tuple[str, ...]) -> list[str]:
    return ["".join(letters[c] for c in row if c >= 0) for row in codes]


@pytest.mark.parametrize("name", ORACLES)
def test_programs_and_counts_agree_with_the_definition(name: str) -> None:
    letters, oracle = ORACLES[name]
    spoken = language(name)
    assert "".join(spoken.letters) == letters
    for length in range(1, SHORT[letters] + 1):
        strings = every_string(letters, length)
        inside = [oracle(string) for string in strings]
        assert evaluate(spoken.membership, strings).accepted.tolist() == inside
        assert spoken.size(length) == sum(inside)
        assert spoken.size(length, member=False) == len(strings) - sum(inside)


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("member", [True, False])
def test_draws_are_uniform(name: str, member: bool) -> None:
    letters, oracle = ORACLES[name]
    spoken = language(name)
    length = 6
    wanted = [s for s in every_string(letters, length) if oracle(s) == member]
    draws = 4000
    drawn = spoken.draw(np.full(draws, length), np.random.default_rng(0), member=member)
    counts = Counter(texts(drawn, spoken.letters))
    assert set(counts) <= set(wanted)
    expected = draws / len(wanted)
    statistic = sum((counts[s] - expected) ** 2 / expected for s in wanted)
    freedom = len(wanted) - 1
    assert abs(statistic - freedom) <= 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("k", range(1, 8))
def test_programs_have_the_depth_that_is_claimed(k: int) -> None:
    assert depth(membership_program(k)) == depth(two_sided_program(k)) == k
    assert depth(subsequence_program("aab" * k)) == 2 * k


def test_long_strings_follow_the_definition() -> None:
    generator = np.random.default_rng(1)
    for name, (_, oracle) in ORACLES.items():
        spoken, lengths = language(name), 6 * generator.integers(6, 12, 20)
        for member in (True, False):
            strings = texts(spoken.draw(lengths, generator, member=member), spoken.letters)
            assert [len(s) for s in strings] == lengths.tolist()
            assert all(oracle(s) == member for s in strings), name
            assert (evaluate(spoken.membership, strings).accepted == member).all(), name


@pytest.mark.parametrize("name", [n for n in ORACLES if n != "L_1"])
def test_prediction_asks_whether_the_prefix_is_in_the_language(name: str) -> None:
    letters, oracle = ORACLES[name]
    task = PrefixPrediction(name, ((3, 12), (13, 20)))
    batch = task.sample(11, seed=4)
    words = dict(zip(token_ids(task.program, [letters])[0, 1:].tolist(), letters, strict=True))
    lengths = batch.mask.sum(1)
    assert sorted(lengths <= 12) == [False] * 5 + [True] * 6
    for row in range(11):
        n = int(lengths[row])
        assert batch.mask[row].tolist() == [1 <= place <= n for place in range(21)]
        string = "".join(words[int(i)] for i in batch.inputs[row, 1 : n + 1])
        assert oracle(string)
        for place in range(1, n + 1):
            assert batch.targets[row, place] == oracle(string[:place])
        run = evaluate(task.program, [string])
        for line, held in batch.latents.items():
            assert held[row, 1 : n + 1].tolist() == run.values[line][0].tolist()
            assert held[row, 0] == 0
            assert not held[row, n + 1 :].any()
        assert batch.inputs[row, : n + 1].tolist() == token_ids(task.program, [string])[0].tolist()


@pytest.mark.parametrize("name", ORACLES)
def test_membership_has_equal_halves_in_every_bin(name: str) -> None:
    letters, oracle = ORACLES[name]
    task = Membership(name, ((3, 10), (21, 30)))
    batch = task.sample(40, seed=2)
    assert (batch.mask.sum(1) == 1).all()
    last = batch.mask.long().argmax(1)
    truth = batch.targets[torch.arange(40), last]
    for short in (True, False):
        assert truth[(last <= 10) == short].sum() == 10
    for row in range(40):
        n = int(last[row])
        string = "".join(letters[int(i) - 1] for i in batch.inputs[row, 1 : n + 1])
        assert truth[row] == oracle(string), string


def test_a_near_miss_is_one_change_away() -> None:
    batch = Membership("dyck-1", ((8, 8),)).sample(400, seed=0)
    outside = batch.inputs[batch.targets[:, 8] == 0, 1:]
    lead = ((outside == 1).sum(1) - (outside == 2).sum(1)).abs()
    assert (lead == 2).float().mean() > 0.5  # one bracket turned round; at random only 7 in 32


@pytest.mark.parametrize("kind", [PrefixPrediction, Membership])
def test_refusals(kind: type) -> None:
    with pytest.raises(ArgumentError, match=r"must be one of L_k, .* got 'L_0'"):
        kind("L_0")
    with pytest.raises(ArgumentError, match=r"length that L_7 has strings of, got \(3, 6\)"):
        kind("L_7", ((3, 6),))
    with pytest.raises(ArgumentError, match=r"shortest ≤ longest, got \(9, 3\).*got \(0, 3\)"):
        kind("L_2", ((9, 3), (0, 3)))
    with pytest.raises(ArgumentError, match="must name a bin"):
        kind("L_2", ())


@pytest.mark.parametrize("kind", [PrefixPrediction, Membership])
def test_answers_as_bits(kind: type) -> None:
    classes = kind("L_4", ((4, 9),)).sample(12, seed=1)
    bits = kind("L_4", ((4, 9),), "bits").sample(12, seed=1)
    assert torch.equal(classes.inputs, bits.inputs)
    assert torch.equal(classes.targets[..., None].float(), bits.targets)
    with pytest.raises((ArgumentError, TypeError), match="targets"):
        kind("L_4", ((4, 9),), "words")


@pytest.mark.parametrize(("k", "bins"), [(1, ((1, 4),)), (3, ((3, 4), (6, 7))), (4, ((4, 8),))])
def test_prefixes_are_those_of_all_strings_counted_one_by_one(k: int, bins: Any) -> None:
    task, lengths = PrefixPrediction(f"L_{k}", bins), range(1, 8)
    asked: Counter[tuple[tuple[int, ...], int]] = Counter()
    _, a, b = letters_of(task).tolist()
    for n in (n for low, high in bins for n in range(low, min(high, 7) + 1)):
        for word in product("ab", repeat=n):
            text = "".join(word)
            for i in lengths[:n] if re.fullmatch(blocks(k), text) else ():
                ids = tuple({"a": a, "b": b}[letter] for letter in text[:i])
                asked[(0, *ids), int(bool(re.fullmatch(blocks(k), text[:i])))] += 1
    found: Counter[tuple[tuple[int, ...], int]] = Counter()
    for ids, answers, times in prefixes(task, 7, ordered=True, most=5):
        assert len(ids) <= 5
        for row, answer, number in zip(ids.tolist(), answers.tolist(), times, strict=True):
            found[tuple(row), answer] += number
    assert found == asked
    merged: Counter[Any] = Counter()
    for (row, answer), number in asked.items():
        merged[len(row), row.count(a), row[-1], answer] += number
    again: Counter[Any] = Counter()
    for ids, answers, times in prefixes(task, 7, ordered=False, most=99):
        for row, answer, number in zip(ids.tolist(), answers.tolist(), times, strict=True):
            again[len(row), row.count(a), row[-1], answer] += number
    assert again == merged
