"""Pairs of strings that no program with few counts and small numbers tells apart."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from analyses.papers.base import Setting
from analyses.papers.depth import bounded
from analyses.papers.depth.bounded import Pair, prefix_class, shortest_pair
from interp.program.analysis import depth
from interp.program.evaluation import evaluate
from interp.program.languages import prediction_program
from interp.program.parser import parse_program
from interp.program.syntax import Program

LETTERS = ("a", "b")


def blocks(string: str) -> int:
    return 1 + sum(left != right for left, right in pairwise(string))


def one_of(parts: Sequence[Any], source: np.random.Generator) -> Any:
    return parts[source.integers(len(parts))]


def random_formula(parts: list[str], source: np.random.Generator) -> str:
    """A random Boolean combination of formulas."""
    found: str = one_of(parts, source)
    for _ in range(source.integers(3)):
        other = one_of(parts, source)
        found = one_of([f"({found} && {other})", f"({found} || {other})", f"!{found}"], source)
    return found


def linear(bound: int, source: np.random.Generator) -> str:
    numbers = range(-bound, bound + 1)
    a, b = (f'{one_of(numbers, source)} * # "{letter}"' for letter in LETTERS)
    return f"({a} + {b} >= {one_of(numbers, source)})"


def program_within(bounds: tuple[int, ...], source: np.random.Generator) -> Program:
    """A random program whose comparisons keep within the bounds."""
    known = [f'"{letter}"' for letter in LETTERS] + [linear(bounds[0], source) for _ in range(4)]
    for bound in bounds[1:]:
        counts = [f"# {random_formula(known, source)}" for _ in range(4)]
        if bound:
            known += [f"({one} >= {source.integers(bound + 1)})" for one in counts]
        else:
            signs = [int(source.integers(-3, 4)) for _ in counts]
            terms = [f"{s} * {n}" for n, s in zip(counts, signs, strict=True)]
            known.append(f"({' + '.join(terms)} >= 1)")
    return parse_program(f"answer = {random_formula(known, source)}")


def answers(program: Program, string: str) -> bool:
    found = evaluate(program, [list(string)])
    return bool(found.values[found.answer][0, len(string) - 1])


@pytest.mark.parametrize(("k", "bounds"), [
    (4, (0,)), (4, (3,)), (5, (1, 1)), (5, (2, 0)), (6, (1, 3, 0)),
])  # fmt: skip
def test_no_program_within_the_bounds_tells_a_pair_apart(k: int, bounds: tuple[int, ...]) -> None:
    pair = shortest_pair(k, bounds, 20)
    assert pair is not None
    assert (blocks(pair.begun), pair.begun[-1]) == (k, pair.before[-1])
    assert blocks(pair.before) < k
    assert prefix_class(pair.before, bounds) == prefix_class(pair.begun, bounds)
    source = np.random.default_rng(0)
    within = (bounds[0] or 7, *bounds[1:])
    for _ in range(30):
        program = program_within(within, source)
        assert answers(program, pair.before) == answers(program, pair.begun)
    right = prediction_program(k)
    assert depth(right) == len(bounds) + 1
    assert (answers(right, pair.before), answers(right, pair.begun)) == (False, True)


def test_random_programs_with_larger_numbers_do_tell_it_apart() -> None:
    pair, source = shortest_pair(5, (1, 1), 20), np.random.default_rng(0)
    assert pair is not None
    programs = [program_within((3, 3), source) for _ in range(200)]
    assert any(answers(one, pair.before) != answers(one, pair.begun) for one in programs)


@pytest.mark.parametrize(("k", "bounds"), [(4, (1,)), (5, (1, 1)), (5, (2, 1)), (5, (1, 0))])
def test_the_shortest_pair_is_that_of_a_search_by_hand(k: int, bounds: tuple[int, ...]) -> None:
    longest, seen = 11, {}
    prefixes = ["a"]
    for prefix in prefixes:  # which grows: every prefix of a string of L_k, the shorter first
        for letter in LETTERS:
            grown = prefix + letter
            if blocks(grown) <= k and len(grown) + k - blocks(grown) <= longest:
                prefixes.append(grown)
        seen.setdefault(prefix_class(prefix, bounds), {}).setdefault(blocks(prefix) == k, prefix)
    pairs = [Pair(one[False], one[True]) for one in seen.values() if len(one) == 2]
    found = shortest_pair(k, bounds, longest)
    assert (found is None) == (not pairs)
    if found is not None:
        assert found.length == min(pair.length for pair in pairs)


def test_verdict_needs_all_three_languages(tmp_path) -> None:
    def verdict_on(*fragments: list[int]):
        options = {"fragments": list(fragments), "longest": 20}
        return bounded.run(Setting("quick", (0,), options, tmp_path))

    some = verdict_on([4, 0], [5, 2, 0], [5, 5, 1])
    assert some.status == "partly"
    assert "2 of 3 fragments" in some.key
    assert "L_4: any: aabb and abab" in some.words
    assert some.tables["pairs"]["length"].isna().tolist() == [False, False, True]
    assert verdict_on([5, 5, 1]).status == "not reproduced"
    assert verdict_on([4, 0], [5, 2, 0], [6, 1, 3, 0]).status == "reproduced"
