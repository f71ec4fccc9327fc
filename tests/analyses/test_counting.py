"""From compiled programs back to programs, and what each step is made of, against slow oracles."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analyses.benchmarks.random_programs import observed_depth, random_program
from interp.errors import ArgumentError
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.program.analysis import depth
from interp.program.evaluation import evaluate
from interp.program.languages import (
    dyck_program,
    equal_blocks_program,
    majority_program,
    membership_program,
    prediction_program,
)
from interp.program.parser import parse_program as parse
from interp.program.printer import program_text
from interp.program.syntax import Program
from interp.proofs.depth.compiler import Precision, compile_program, vocabulary_of
from interp.proofs.depth.decompiler.covers import Cover, cover
from interp.proofs.depth.decompiler.network import integer_comparison
from interp.proofs.depth.decompiler.program import CountingProgram, decompile_counting, weighted_sum
from interp.proofs.depth.decompiler.tables import at_thresholds, draw_counts, in_cell
from interp.proofs.random_basis import random_basis

LONGEST = 40


def back(program: Program, precision: Precision, seed: int = 0) -> CountingProgram:
    made = compile_program(program, longest=LONGEST, precision=precision)
    return decompile_counting(random_basis(made, seed).model, vocabulary_of(program)[1:], seed=seed)


def differences(first: Program, second: Program, letters: str, length: int) -> int:
    """Positions of all strings of one length, so of all shorter ones, and of 40 long ones."""
    short = [list(string) for string in product(letters, repeat=length)]
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.ones(len(letters)), 40)
    long = [list(generator.choice(list(letters), LONGEST, p=p)) for p in shares]
    wrong = 0
    for strings in (short, long):
        answers = [evaluate(p, strings).values[p.lines[-1].name] for p in (first, second)]
        wrong += int((answers[0] != answers[1]).sum())
    return wrong


LANGUAGES = {
    "majority": (majority_program(), "ab"),
    "dyck": (dyck_program(), "()"),
    "blocks": (equal_blocks_program(), "abc"),
    "membership": (membership_program(3), "ab"),
    "prediction": (prediction_program(5), "ab"),
}


@pytest.mark.parametrize("precision", ["ramp", "sign"])
@pytest.mark.parametrize("name", list(LANGUAGES))
def test_languages_come_back_exactly_and_at_their_depth(name: str, precision: Precision) -> None:
    program, letters = LANGUAGES[name]
    found = back(program, precision)
    assert found.program is not None, found.reason
    assert found.agreement == 1.0
    assert found.decisions > 1000
    assert depth(found.program) == depth(program)
    assert differences(program, found.program, letters + "x", 6) == 0


def test_the_algorithm_is_there_to_be_read() -> None:
    found = back(prediction_program(5), "ramp")
    assert found.program is not None
    assert program_text(found.program).splitlines() == [
        'n1 = # "b"',
        'n2 = # ("a" && n1 > 0)',
        'n3 = # ("b" && n2 > 0)',
        'answer = "a" && n3 > 0',
    ]
    assert [(s.line, s.threshold, s.layer) for s in found.sources] == [
        ("n1", 1, 0), ("n2", 1, 1), ("n3", 1, 2)]  # fmt: skip
    assert all(s.residual < 1 / (2 * LONGEST) for s in found.sources)


@pytest.mark.parametrize(
    ("text", "precision", "letters", "length", "levels", "says"),
    [
        (
            'seen = # "b" >= 2\n'
            'answer = 2 * # "a" - 3 * # (seen && !"a") > 1 && min(# "a", # seen) < 5',
            "sign", "abx", 7, 2, 'n2 = 3 * # (!"a" && n1 >= 2) - 2 * # "a"',
        ),
        ('answer = "a" || !("b" || "c")', "ramp", "abcx", 2, 0, ""),
        ('answer = # "a" >= # ("a" && # "b" > 0)', "ramp", "ab", 6, 0, "true"),
    ],
    ids=["sums of counts keep their form", "no count", "always right"],
)  # fmt: skip
def test_programs_that_are_written_down_come_back(
    text: str, precision: Precision, letters: str, length: int, levels: int, says: str
) -> None:
    program = parse(text)
    found = back(program, precision)
    assert found.program is not None, found.reason
    assert differences(program, found.program, letters, length) == 0
    assert depth(found.program) == levels
    assert says in program_text(found.program)


@pytest.mark.parametrize(("seed", "predicates"), [(0, True), (1, False), (5, True)])
def test_random_programs_come_back(seed: int, predicates: bool) -> None:
    program, _ = random_program(seed, predicates=predicates)
    found = back(program, ("ramp", "sign")[seed % 2], seed)
    assert found.program is not None, found.reason
    assert differences(program, found.program, "abc", 7) == 0
    assert depth(found.program) == observed_depth(program) == depth(program)


def small(**options: object) -> SequenceTransformer:
    settings: dict[str, object] = {
        "d_in": 4, "d_out": 1, "n_ctx": 21, "d_model": 8, "n_layers": 1, "n_heads": 1,
        "d_head": 4, "ffn": (8,), "score": "none", "dtype": "float64",
    }  # fmt: skip
    return SequenceTransformer(TransformerSpec(**{**settings, **options}), seed=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"norm": "layernorm"}, "a layernorm makes what it reads no sum of counts"),
        ({"activation": "gelu"}, "smooth"),
        ({"score": "dot"}, r"head 0\.0 neither averages the prefix nor looks a fixed number"),
        ({"positions": "learned"}, "positions do not repeat"),
        ({}, "writes numbers, not truth values|no comparison of counts"),
    ],
)
def test_models_of_another_kind_are_told_why(options: dict[str, object], reason: str) -> None:
    found = decompile_counting(small(**options), ("a", "b", None))
    assert found.program is None
    assert np.isnan(found.agreement)
    assert re.search(reason, found.reason)


def test_weights_that_are_off_give_no_program() -> None:
    made = random_basis(compile_program(dyck_program(), longest=LONGEST), 0)
    with torch.no_grad():
        made.model.blocks[0].attn.W_V += 0.05 * torch.randn(
            made.model.blocks[0].attn.W_V.shape, generator=torch.Generator().manual_seed(0)
        )
    found = decompile_counting(made.model, vocabulary_of(dyck_program())[1:])
    assert found.program is None or found.agreement < 1.0


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="words must name ids 1 to 3"):
        decompile_counting(small(), ("a",))
    with pytest.raises(ArgumentError, match=r"longest must lie in 2 … 20"):
        decompile_counting(small(), ("a", "b", None), longest=21)


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(-6, 6), min_size=1, max_size=3).filter(any),
    threshold=st.integers(-8, 12),
    scale=st.floats(0.01, 100.0),
    shift=st.floats(-0.2, 0.2),
)
def test_a_comparison_is_the_neurons_for_all_numbers(
    weights: list[int], threshold: int, scale: float, shift: float
) -> None:
    longest = 10
    spread = shift / (longest + 1)  # what a bias does: it is shared by all tokens
    alpha = scale * (np.array(weights, dtype=float) + spread)
    bos = scale * (0.5 - threshold + spread)
    found = integer_comparison(alpha, bos, longest)
    numbers = np.array([n for n in product(range(longest + 1), repeat=len(weights))
                        if sum(n) <= longest])  # fmt: skip
    truth = numbers @ alpha + bos > 0
    if found is None:
        assert truth.all() or not truth.any()
        return
    held = numbers @ np.array(found.weights) >= found.threshold
    assert (held == truth).all() or (held == ~truth).all()
    assert np.gcd.reduce(found.weights) == 1


def test_a_neuron_without_a_scale_has_no_comparison() -> None:
    assert integer_comparison(np.array([1.0, -np.sqrt(2)]), 0.1, 10**6) is None
    short = integer_comparison(np.array([1.0, -np.sqrt(2)]), 0.1, 3)
    assert short is not None  # so few tokens that small numbers do


def tables(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    sizes = draw(st.lists(st.integers(2, 3), min_size=1, max_size=3))
    return np.array(list(product(*(range(size) for size in sizes)))), sizes


def holds(found: Cover, row: Sequence[int]) -> bool:
    inside = any(
        all(allowed is None or value in allowed for value, allowed in zip(row, cube, strict=True))
        for cube in found.cubes
    )
    return inside != found.negated


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_cover_is_its_function_wherever_that_is_given(data: st.DataObject) -> None:
    rows, sizes = tables(data.draw)
    seed = data.draw(st.integers(0, 10_000))
    generator = np.random.default_rng(seed)
    rows = rows[generator.random(len(rows)) < 0.7]
    if not len(rows):
        return
    wanted = generator.random(len(rows)) < generator.random()
    found = cover(rows, wanted, sizes)
    assert [holds(found, row) for row in rows.tolist()] == wanted.tolist()
    weights = generator.integers(-2, 3, len(rows))
    parts = weighted_sum(rows, weights, sizes)
    summed = [sum(w * holds(c, row) for w, c in parts) for row in rows.tolist()]
    assert summed == weights.tolist()


def test_numbers_stand_where_they_are_asked_to() -> None:
    generator = np.random.default_rng(0)
    counts = draw_counts(50, 4, 30, generator)
    assert (counts >= 0).all()
    assert set(counts.sum(axis=1)) <= set(range(1, 31))
    weights = np.array([[1, -2, 0, 0], [0, 0, 3, 1]])
    moved = at_thresholds(weights, np.array([2, 7]), counts, 30, generator)
    near = (moved @ weights.T) - np.array([2, 7])
    assert np.isin(near, (0, -1)).any(axis=1).all()
    found = in_cell(weights, [5.0, -np.inf], [5.0, 0.0], 30)
    assert found is not None
    assert (found @ weights.T).tolist() == [5, 0]
    assert in_cell(weights, [31.0, -np.inf], [np.inf, np.inf], 30) is None


def test_float32_weights_come_back_too() -> None:
    program = majority_program()
    made = compile_program(program, longest=20, dtype="float32")
    found = decompile_counting(replace(made).model, vocabulary_of(program)[1:])
    assert found.program is not None
    assert differences(program, found.program, "abx", 6) == 0
