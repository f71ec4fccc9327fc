"""Pairs of strings that differ in the order of two symbols, and what programs can tell of them."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from analyses.papers.base import Setting
from analyses.papers.depth import swapped
from analyses.papers.depth.swapped import block_lengths, same_ends, swapped_pair
from interp.program.analysis import depth
from interp.program.evaluation import evaluate
from interp.program.languages import prediction_program
from interp.program.parser import parse_program


def has_same_ends(texts: tuple[str, str], levels: int, bound: int) -> bool:
    """Whether the ends are the same, by trying every comparison at every position."""
    numbers = range(-bound, bound + 1)
    classes = [list(text) for text in texts]
    for _ in range(levels - 1):
        names = sorted(set(classes[0]) | set(classes[1]))
        factors = list(product(numbers, repeat=len(names)))
        told: dict[tuple, int] = {}
        finer = []
        for one in classes:
            now = []
            for place, name in enumerate(one):
                counts = Counter(one[: place + 1])
                sums = [sum(f * counts[n] for f, n in zip(e, names, strict=True)) for e in factors]
                holds = tuple(total >= v for total in sums for v in numbers)
                now.append(told.setdefault((name, holds), len(told)))
            finer.append(now)
        classes = finer
    return classes[0][-1] == classes[1][-1] and Counter(classes[0]) == Counter(classes[1])


@pytest.mark.parametrize(("levels", "bound", "longest", "outcomes"), [
    (1, 1, 8, {True}), (2, 1, 9, {True, False}), (2, 2, 18, {True, False}), (3, 1, 3, {False}),
])  # fmt: skip
def test_classes_are_those_of_every_comparison_written_out(
    levels: int, bound: int, longest: int, outcomes: set[bool]
) -> None:
    rng, found = np.random.default_rng(levels + bound), set()
    for _ in range(30):
        word = "a" * int(rng.integers(1, longest)) + "b" * int(rng.integers(0, 6))
        word += "".join(rng.choice(["a", "b"], int(rng.integers(0, 3))))
        texts = (word + "abb", word + "bab")
        found.add(has_same_ends(texts, levels, bound))
        assert same_ends(*texts, levels, bound) == has_same_ends(texts, levels, bound)
    assert found == outcomes


@pytest.mark.parametrize(("k", "bound", "shortest", "factor"), [
    (4, 1, 4, 2), (5, 1, 4, 3), (5, 3, 16, 5), (6, 1, 8, 2), (6, 2, 16, 3),
])  # fmt: skip
def test_no_program_within_the_bound_tells_the_ends_apart(k, bound, shortest, factor) -> None:
    pair = swapped_pair(k, shortest, factor)
    assert same_ends(*pair, k - 3, bound)
    assert not same_ends(*pair, k - 2, bound)
    rng = np.random.default_rng(k)
    for _ in range(40):
        program = parse_program(program_within(k - 3, bound, rng))
        assert depth(program) == k - 3
        values = evaluate(program, list(pair)).values
        assert all(line[0, -1] == line[1, -1] for line in values.values())
    told = evaluate(prediction_program(k), list(pair)).values["last"]
    assert told[:, -1].tolist() == [False, True]


def program_within(levels: int, bound: int, rng: np.random.Generator) -> str:
    """Comparisons of two counts at each level, whose factors add up to at most the bound below the
    outermost one."""
    lines, below = [], ['"a"', '"b"']
    for level in range(1, levels + 1):
        most, now = (9 if level == levels else bound), []
        for number in range(3):
            one, other = rng.choice(below, 2)
            left = int(rng.integers(-most, most + 1))
            rest = most - abs(left)
            right = int(rng.integers(-rest, rest + 1))
            least = int(rng.integers(-most, most + 1))
            name = f"f{level}_{number}"
            lines.append(f"{name} = {left} * (# {one}) + {right} * (# {other}) >= {least}")
            letter = rng.choice(['"a"', '"b"'])
            lines.append(f"g{level}_{number} = {letter} && !{name}")
            now += [name, f"g{level}_{number}"]
        below = now
    return "\n".join(lines)


def test_short_blocks_are_told_apart() -> None:
    assert not same_ends("aabb", "abab", 2, 1)
    assert not same_ends(*swapped_pair(5, 8, 2), 2, 2)  # 2 #b against #a, of 16 and 8


def test_lengths_grow_in_the_order_that_the_argument_needs() -> None:
    assert block_lengths(5, 2, 3) == [2 * 81, 2, 2 * 27, 2 * 3, 2 * 9]
    before, begun = swapped_pair(5, 4, 3)
    assert (before, begun) == ("a" * 12 + "b" * 4 + "baa", "a" * 12 + "b" * 4 + "aba")


def test_the_verdict_needs_every_pair(tmp_path) -> None:
    def verdict_on(*cases: list[int]):
        return swapped.run(Setting("quick", (0,), {"cases": list(cases)}, tmp_path))

    assert verdict_on([5, 1, 4, 3], [6, 1, 8, 2]).status == "reproduced"
    some = verdict_on([5, 2, 8, 2], [6, 1, 8, 2])
    assert some.status == "partly"
    assert some.key == "excluded at depth k − 3: L_6 up to 1"
    assert verdict_on([5, 2, 8, 2]).status == "not reproduced"
