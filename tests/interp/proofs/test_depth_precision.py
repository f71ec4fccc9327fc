"""Compiled programs with signs, and with predicates of positions."""

from itertools import product

import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.models.checkpoint import load_checkpoint, save_checkpoint
from interp.models.transformer import SequenceTransformer
from interp.program.analysis import depth
from interp.program.evaluation import evaluate
from interp.program.languages import prediction_program
from interp.program.parser import parse_program as parse
from interp.program.predicates import binary, unary
from interp.program.syntax import Program
from interp.proofs.depth.compiler import compile_program, token_ids

SHORT = ["".join(tokens) for n in range(1, 6) for tokens in product("ab", repeat=n)]
CASES = parse(
    'mixed = min(3 * # "a" - # "b", # "b" + 1) + max(-2, # (# "a" > 2))\n'
    'turned = mixed if # "b" > 2 else 7 - mixed\n'
    "last = turned == 2 || turned != 3 && mixed <= 1"
)
POSITIONS = {
    "even": '#import pos_even\nlast = # ("a" && pos_even) > # (!pos_even)',
    "flat": '#import pos_mod3_1\nlast = pos_mod3_1 && "a"',
    "alone": "#import pos_even\nlast = # pos_even >= 2 && pos_even",
    "chosen": "#import pos_even\nx = 1 if pos_even else 3\nlast = # (x > 2) + x == 4",
    "before": '#import pred\nlast = #[pred] "a" >= 1 && "b"',
    "far": '#import pred3\n#import pred\nlast = #[pred3] "a" + 2 * #[pred] "b" == # "a"',
    "nested": '#import pred\ns = "b" && #[pred] "a" == 1\nlast = # s >= 2 || #[pred] s == 1',
}


def strings(seed: int, number: int, longest: int) -> list[str]:
    generator = np.random.default_rng(seed)
    shares = generator.random(number)
    lengths = generator.integers(longest // 2, longest + 1, number)
    return ["".join(generator.choice(list("ab"), n, p=[p, 1 - p]))
            for n, p in zip(lengths, shares, strict=True)]  # fmt: skip


def check(program: Program, model: SequenceTransformer, rows: list[str]) -> None:
    """The output is the last line's truth value, exactly, inside every string."""
    wanted = evaluate(program, rows).values[program.lines[-1].name]
    with torch.no_grad():
        output = model(token_ids(program, rows))[:, 1:, 0].numpy()
    inside = np.arange(wanted.shape[1]) < np.array([len(row) for row in rows])[:, None]
    wrong = (output != wanted) & inside
    assert not wrong.any(), rows[int(wrong.any(1).argmax())]


@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_signs_give_prediction_programs(k: int) -> None:
    program = prediction_program(k)
    model = compile_program(program, longest=200, precision="sign").model
    assert model.spec.n_layers == k - 2
    check(program, model, [*SHORT, *strings(k, 10, 200)])


def test_signs_split_numbers_into_cases() -> None:
    construction = compile_program(CASES, precision="sign")
    check(CASES, construction.model, [*SHORT, *strings(0, 8, 300)])
    assert "mixed" not in construction.mechanism.directions


def test_a_linear_number_lies_along_its_direction() -> None:
    program = parse('lead = 2 * # "a" - # "b" + 1\nlast = lead > 0')
    construction = compile_program(program, precision="sign")
    rows = strings(1, 4, 50)
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(token_ids(program, rows))
    held = cache[construction.mechanism.written["lead"]] @ construction.mechanism.directions["lead"]
    run = evaluate(program, rows)
    values = run.values["lead"] / np.arange(2, held.shape[1] + 1)
    inside = np.arange(values.shape[1]) < run.lengths[:, None]
    ratio = held[:, 1:].numpy()[inside] * 6**0.5 - values[inside]
    assert np.abs(ratio).max() < 1e-12


def test_signs_have_the_same_weights_at_every_length(tmp_path) -> None:  # type: ignore[no-untyped-def]
    short, long = (compile_program(CASES, longest=n, precision="sign") for n in (10, 2000))
    for first, second in zip(short.model.parameters(), long.model.parameters(), strict=True):
        assert torch.equal(first, second)
    assert short.certificate.parts["exact to length"] > 1e5
    save_checkpoint(short.model, tmp_path / "model")
    check(CASES, load_checkpoint(tmp_path / "model"), SHORT[:14])


def test_signs_outlast_ramps_of_the_same_length() -> None:
    program = parse('last = # "a" == # "b"')
    weights = {
        name: compile_program(program, longest=100, precision=name).model.state_dict()
        for name in ("ramp", "sign")
    }
    rows = ["ab" * 500, "ab" * 499 + "aa"]
    for name, exact in (("ramp", False), ("sign", True)):
        longer = compile_program(program, longest=1000, precision=name).model
        longer.load_state_dict(weights[name])
        output = longer(token_ids(program, rows))[:, -1, 0].tolist()
        assert (output == [1.0, 0.0]) == exact


def test_float32_signs_are_refused_beyond_their_rounding() -> None:
    with pytest.raises(ArgumentError, match=r"rounding below the margin 0\.5 in float32"):
        compile_program(CASES, longest=20_000, dtype="float32", precision="sign")
    with pytest.raises((ArgumentError, TypeError), match="precision"):  # the hook answers first
        compile_program(CASES, precision="exact")  # type: ignore[arg-type]


def test_too_many_cases_are_refused() -> None:
    deep = 'min(# "a", min(# "b", 1))'
    program = parse(f"last = {deep} + {deep} + {deep} + {deep} > 3")
    with pytest.raises(ArgumentError, match="at most 64 cases a comparison"):
        compile_program(program, precision="sign")


@pytest.mark.parametrize("precision", ["ramp", "sign"])
@pytest.mark.parametrize("name", POSITIONS)
def test_programs_that_ask_for_positions(name: str, precision: str) -> None:
    program = parse(POSITIONS[name])
    construction = compile_program(program, longest=60, precision=precision)
    assert construction.model.spec.n_layers == depth(program)
    check(program, construction.model, [*SHORT, *strings(2, 8, 60)])


def test_relative_positions_cost_no_weights_a_position() -> None:
    for name, grows in (("nested", False), ("even", True)):
        sizes = [sum(p.numel() for p in compile_program(parse(POSITIONS[name]), longest=n)
                     .model.parameters()) for n in (10, 500)]  # fmt: skip
        assert (sizes[0] < sizes[1]) == grows


def test_guarded_heads_look_at_their_lag_alone() -> None:
    program = parse(POSITIONS["far"])
    construction = compile_program(program, longest=20)
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(token_ids(program, ["abbab"]))
    pattern = cache["blocks.0.attn.hook_pattern"][0]
    heads = {part.role: (part.head, part.lag) for part in construction.mechanism.parts
             if part.component == "head"}  # fmt: skip
    for head, lag in (heads["previous-token"], heads["memory-location"]):
        for query in range(6):
            assert pattern[head, query, max(query - lag, 0)] == 1
    assert heads["uniform"][1] is None


def test_predicates_of_ones_own() -> None:
    square = unary("square", lambda i: int(i**0.5) ** 2 == i)
    program = parse('#import square\nlast = # (square && "a") >= 2', [square])
    check(program, compile_program(program, longest=40).model, [*SHORT, *strings(3, 6, 40)])
    near = binary("near", lambda i, j: i - j < 3)
    with pytest.raises(ArgumentError, match=r"by pred or predN only.*got 'near'"):
        compile_program(parse('#import near\nlast = #[near] "a" > 1', [near]))
