"""Compiled programs against the evaluator, which has its own oracle, at every position."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from crasp_trees import Parts, program_parts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.models.checkpoint import load_checkpoint, save_checkpoint
from interp.models.transformer import SequenceTransformer
from interp.program.analysis import depth
from interp.program.evaluation import evaluate
from interp.program.languages import prediction_program
from interp.program.parser import parse_program as parse
from interp.program.predicates import binary, unary
from interp.program.syntax import Program
from interp.proofs.depth.compiler import compile_program, token_ids, vocabulary_of

DYCK = parse(
    'open = # "("\nclose = # ")"\nbelow = # (open < close)\nbalanced = below == 0 && open == close'
)
EVERYTHING = parse(
    'letter = "a" || 2 < 1\n'
    "small = 1 if letter else 2\n"
    'mixed = min(3 * # "a" - # !letter, small) + max(-2, # (# letter > 2))\n'
    'turned = mixed if # "b" > 2 else 7 - mixed\n'
    "last = turned == 2 || turned != 3 && mixed <= 1"
)
PROGRAMS = {
    "choices": 'inner = 9 * # "a" if # "b" > 1 else -5\n'
    'outer = inner if # "a" > # "b" else 2 * # "b"\nlast = outer > 17 || outer == -5',
    "true": "x = true",
    "always": 'x = # "a" >= 0 || true',
    "never": 'x = !("b" || 1 < 2)',
    "length": "x = # true == # true",
    "even": '#import pos_even\nlast = # ("a" && pos_even) > # (!pos_even)',
    "flat": '#import pos_mod3_1\nlast = pos_mod3_1 && "a"',
    "alone": "#import pos_even\nlast = # pos_even >= 2 && pos_even",
    "chosen": "#import pos_even\nx = 1 if pos_even else 3\nlast = # (x > 2) + x == 4",
    "before": '#import pred\nlast = #[pred] "a" >= 1 && "b"',
    "far": '#import pred3\n#import pred\nlast = #[pred3] "a" + 2 * #[pred] "b" == # "a"',
    "nested": '#import pred\ns = "b" && #[pred] "a" == 1\nlast = # s >= 2 || #[pred] s == 1',
}
SHORT = ["".join(tokens) for n in range(1, 6) for tokens in product("ab", repeat=n)]
PRECISIONS = pytest.mark.parametrize("precision", ["ramp", "sign"])


def strings(seed: int, number: int, longest: int, letters: str = "ab") -> list[str]:
    """Random strings of at least half a length, each with its own frequencies."""
    generator = np.random.default_rng(seed)
    biased = generator.dirichlet(np.ones(len(letters)), number)
    lengths = generator.integers(longest // 2, longest + 1, number)
    return ["".join(generator.choice(list(letters), n, p=p))
            for n, p in zip(lengths, biased, strict=True)]  # fmt: skip


def check(program: Program, model: SequenceTransformer, rows: Sequence[str]) -> None:
    """The output is the last line's truth value, exactly, inside every string."""
    wanted = evaluate(program, rows).values[program.lines[-1].name]
    with torch.no_grad():
        output = model(token_ids(program, rows))[:, 1:, 0].numpy()
    inside = np.arange(wanted.shape[1]) < np.array([len(row) for row in rows])[:, None]
    wrong = (output != wanted) & inside
    assert not wrong.any(), rows[int(wrong.any(1).argmax())]


@PRECISIONS
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=program_parts(future=False, lines=3), rows=st.lists(
    st.text("ab", min_size=1, max_size=12), min_size=1, max_size=6))  # fmt: skip
def test_any_past_only_program(precision: str, parts: Parts, rows: list[str]) -> None:
    program = Program(parts[0], imports=parts[1])
    try:
        construction = compile_program(program, longest=100, precision=precision)
    except ArgumentError as error:
        if "cases a comparison" not in str(error):
            raise
        return
    assert construction.model.spec.n_layers == depth(program)
    assert construction.certificate.error == 0
    check(program, construction.model, [*rows, *strings(0, 4, 100)])


@PRECISIONS
@pytest.mark.parametrize("name", [*PROGRAMS, "everything"])
def test_every_operator_and_predicate(name: str, precision: str) -> None:
    program = EVERYTHING if name == "everything" else parse(PROGRAMS[name])
    construction = compile_program(program, longest=200, precision=precision)
    assert construction.model.spec.n_layers == depth(program)
    check(program, construction.model, [*SHORT, *strings(2, 8, 200)])


@pytest.mark.parametrize(
    ("k", "precision"), [(2, "ramp"), (7, "ramp"), (12, "ramp"), (3, "sign"), (8, "sign")]
)
def test_prediction_programs_have_k_minus_2_layers(k: int, precision: str) -> None:
    program = prediction_program(k)
    model = compile_program(program, longest=300, precision=precision).model
    assert model.spec.n_layers == k - 2
    lengths = np.random.default_rng(k).integers(1, 300 // k, (10, k))
    promised = ["".join("ab"[i % 2] * n for i, n in enumerate(row)) for row in lengths]
    check(program, model, [*SHORT, *promised])


def test_dyck_1_up_to_its_longest_input() -> None:
    deep = ["(" * 500 + ")" * 500, "()" * 500, "(" * 500 + ")" * 499 + "(", ")" + "(" * 999]
    construction = compile_program(DYCK, longest=1000)
    check(DYCK, construction.model, [*deep, *strings(1, 4, 1000, "()")])
    check(DYCK, construction.model, ["".join(s) for s in product("()", repeat=8)])
    with pytest.raises(ArgumentError, match="at most n_ctx = 1001 positions"):
        construction.model(token_ids(DYCK, ["(" * 1001]))


@PRECISIONS
def test_weights_do_not_grow_with_the_length_and_load_as_a_plain_model(
    precision: str, tmp_path: Path
) -> None:
    short, long = (compile_program(EVERYTHING, longest=n, precision=precision) for n in (10, 2000))
    for one, other in zip(short.model.parameters(), long.model.parameters(), strict=True):
        assert one.shape == other.shape
        assert precision == "ramp" or torch.equal(one, other)
    save_checkpoint(short.model, tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model")
    assert type(loaded) is SequenceTransformer
    check(EVERYTHING, loaded, SHORT)


def test_signs_outlast_ramps_of_the_same_length() -> None:
    program = parse('last = # "a" == # "b"')
    rows = ["ab" * 500, "ab" * 499 + "aa"]
    for name, exact in (("ramp", False), ("sign", True)):
        short, longer = (compile_program(program, longest=n, precision=name) for n in (100, 1000))
        longer.model.load_state_dict(short.model.state_dict())
        output = longer.model(token_ids(program, rows))[:, -1, 0].tolist()
        assert (output == [1.0, 0.0]) == exact
        assert (short.certificate.parts.get("exact to length", 0) > 1e5) == exact


def test_float32_is_exact_as_far_as_its_certificate_goes() -> None:
    construction = compile_program(DYCK, longest=200, dtype="float32")
    assert construction.certificate.parts["rounding"] < 0.5
    check(DYCK, construction.model, [*strings(2, 20, 200, "()"), "()" * 100])
    for program, longest, dtype, precision in (
        (DYCK, 100_000, "float32", "ramp"),
        (EVERYTHING, 20_000, "float32", "sign"),
        (parse('x = 1000000000000 * # "a" > 3'), 1000, "float64", "ramp"),
    ):
        with pytest.raises(ArgumentError, match=rf"rounding below the margin 0\.5 in {dtype}"):
            compile_program(program, longest=longest, dtype=dtype, precision=precision)


def test_names_and_counts_lie_where_the_mechanism_says() -> None:
    construction = compile_program(EVERYTHING)
    mechanism, rows = construction.mechanism, strings(3, 8, 60, "abc")
    run = evaluate(EVERYTHING, rows)
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(token_ids(EVERYTHING, rows))
    prefix = np.arange(2, run.values["last"].shape[1] + 2)
    inside = np.arange(len(prefix)) < run.lengths[:, None]
    counts = {"# letter": "letter", '# "a"': "letter"}
    assert set(mechanism.directions) > {line.name for line in EVERYTHING.lines} | set(counts)
    for name, direction in mechanism.directions.items():
        hook = mechanism.written[name]
        held = (cache[hook] @ direction)[:, 1:].numpy()
        if name in run.values:
            value = run.values[name] / (1 if run.values[name].dtype == bool else prefix)
            if name == "small":
                value = run.values[name]  # of depth 0: as it is
        elif name in counts:
            value = run.values[counts[name]].cumsum(axis=1) / prefix
        else:
            continue
        assert np.abs(held - value)[inside].max() < 1e-12, name
        if hook.startswith("blocks"):
            before = "resid_pre" if hook.endswith("mid") else "resid_mid"
            earlier = cache[f"{hook.rpartition('.')[0]}.hook_{before}"] @ direction
            assert (earlier == 0).all(), "nothing is written before its layer"


def test_a_linear_number_lies_along_its_direction_where_signs_decide() -> None:
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
    cases = compile_program(EVERYTHING, precision="sign").mechanism
    assert "mixed" not in cases.directions, "a number with cases has none"


def test_heads_attend_evenly_to_the_prefix_or_to_their_lag_alone() -> None:
    program = parse(PROGRAMS["far"])
    construction = compile_program(program, longest=20)
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(token_ids(program, ["abbab"]))
    pattern = cache["blocks.0.attn.hook_pattern"][0]
    heads = {part.role: (part.head, part.lag) for part in construction.mechanism.parts
             if part.component == "head"}  # fmt: skip
    for head, lag in (heads["previous-token"], heads["memory-location"]):
        for query in range(6):
            assert pattern[head, query, max(query - lag, 0)] == 1
    head, lag = heads["uniform"]
    even = torch.tril(torch.ones(6, 6, dtype=torch.float64)) / torch.arange(1, 7)[:, None]
    assert lag is None
    assert torch.allclose(pattern[head], even)


def test_relative_positions_cost_no_weights_a_position() -> None:
    for name, grows in (("nested", False), ("even", True)):
        sizes = [sum(p.numel() for p in compile_program(parse(PROGRAMS[name]), longest=n)
                     .model.parameters()) for n in (10, 500)]  # fmt: skip
        assert (sizes[0] < sizes[1]) == grows


def test_unused_lines_are_left_out_and_their_tokens_keep_their_ids() -> None:
    program = parse('other = "0"\ndeep = # (# "a" > 1)\nlast = # "b" > 1')
    construction = compile_program(program)
    assert construction.model.spec.n_layers == 1
    assert "deep" not in construction.mechanism.directions
    assert construction.model.spec.d_in == len(vocabulary_of(program)) == 5
    check(program, construction.model, [*SHORT, "0bxb0", "bb0"])
    assert vocabulary_of(DYCK) == (None, "(", ")", None)
    assert token_ids(DYCK, ["()", "(x))"]).tolist() == [[0, 1, 2, 3, 3], [0, 1, 3, 2, 2]]


def test_predicates_of_ones_own() -> None:
    square = unary("square", lambda i: int(i**0.5) ** 2 == i)
    program = parse('#import square\nlast = # (square && "a") >= 2', [square])
    check(program, compile_program(program, longest=40).model, [*SHORT, *strings(3, 6, 40)])
    near = binary("near", lambda i, j: i - j < 3)
    with pytest.raises(ArgumentError, match=r"by pred or predN only.*got 'near'"):
        compile_program(parse('#import near\nlast = #[near] "a" > 1', [near]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('x = #> "a" > 1', "must count the past only.*longest must be at least 1, got 0"),
        ('x = # "a"', "must end with a formula.*longest must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_compiled_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        compile_program(parse(text), longest=0)


def test_too_many_cases_are_refused() -> None:
    deep = " + ".join(['min(# "a", min(# "b", 1))'] * 4)
    with pytest.raises(ArgumentError, match="at most 64 cases a comparison"):
        compile_program(parse(f"last = {deep} > 3"), precision="sign")
