"""Compiled programs against the evaluator, which has its own oracle, at every position."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

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
from interp.program.syntax import Program
from interp.proofs.depth.circuits import AffineSum, FfnCircuit
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
SHORT = ["".join(tokens) for n in range(1, 7) for tokens in product("ab", repeat=n)]


def random_strings(seed: int, number: int, longest: int, letters: str = "abc") -> list[str]:
    generator = np.random.default_rng(seed)
    biased = generator.dirichlet(np.ones(len(letters)), number)
    lengths = generator.integers(longest // 2, longest + 1, number)
    return ["".join(generator.choice(list(letters), n, p=p))
            for n, p in zip(lengths, biased, strict=True)]  # fmt: skip


def check(program: Program, model: SequenceTransformer, strings: Sequence[str]) -> None:
    """The output is the last line's truth value, exactly, inside every string."""
    wanted = evaluate(program, strings).values[program.lines[-1].name]
    for start in range(0, len(strings), 64):
        batch = strings[start : start + 64]
        with torch.no_grad():
            output = model(token_ids(program, batch))[:, 1:, 0].numpy()
        for row, string in enumerate(batch):
            truth = wanted[start + row, : len(string)]
            assert (output[row, : len(string)] == truth).all(), string


def random_formula(generator: np.random.Generator, names: list[str], level: int) -> str:
    kind = generator.choice(["symbol", "compare", "compare", "not", "and", "or", "name"])
    if kind == "name" and names:
        return str(generator.choice(names))
    if kind == "compare":
        sides = [random_term(generator, names, level) for _ in range(2)]
        return f"{sides[0]} {generator.choice(['==', '!=', '<', '>', '<=', '>='])} {sides[1]}"
    if kind in ("not", "and", "or") and level > 0:
        sides = [f"({random_formula(generator, names, level - 1)})" for _ in range(2)]
        return {"not": f"!{sides[0]}", "and": " && ".join(sides), "or": " || ".join(sides)}[kind]
    return str(generator.choice(['"a"', '"b"', "true", "false"], p=[0.45, 0.45, 0.05, 0.05]))


def random_term(generator: np.random.Generator, names: list[str], level: int) -> str:
    kind = generator.choice(["count", "count", "constant", "sum", "minus", "times", "min", "if"])
    if level == 0 or kind == "constant":
        return str(generator.integers(-4, 8))
    counted = random_formula(generator, names, level - 1)
    if kind == "count":
        return f"# ({counted})"
    left, right = (random_term(generator, names, level - 1) for _ in range(2))
    factor = generator.integers(-7, 8)
    return {"sum": f"({left} + {right})", "minus": f"({left} - {right})",
            "times": f"({factor} * {left})", "min": f"min({left}, max({right}, 2))",
            "if": f"({left} if {counted} else {right})"}[kind]  # fmt: skip


def random_program(seed: int) -> Program:
    generator = np.random.default_rng(seed)
    names: list[str] = []
    lines = []
    for index in range(4):
        lines.append(f"n{index} = # ({random_formula(generator, names, 2)})")
        lines.append(f"f{index} = n{index} > 1 && {random_term(generator, names, 2)} < n{index} "
                     f"|| {random_formula(generator, names, 2)}")  # fmt: skip
        names.append(f"f{index}")
    return parse("\n".join(lines))


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_are_computed_exactly(seed: int) -> None:
    program = random_program(seed)
    construction = compile_program(program, longest=200)
    assert construction.model.spec.n_layers == depth(program)
    assert construction.certificate.error == 0
    check(program, construction.model, [*SHORT, *random_strings(seed, 10, 200)])


def test_random_programs_reach_every_depth() -> None:
    assert {depth(random_program(seed)) for seed in range(20)} >= {1, 2, 3}


def test_every_operator() -> None:
    check(EVERYTHING, compile_program(EVERYTHING).model, [*SHORT, *random_strings(0, 8, 1000)])


def test_a_choice_within_a_choice_keeps_its_size() -> None:
    program = parse(
        'inner = 9 * # "a" if # "b" > 1 else -5\n'
        'outer = inner if # "a" > # "b" else 2 * # "b"\n'
        "last = outer > 17 || outer == -5"
    )
    check(program, compile_program(program).model, [*SHORT, *random_strings(4, 10, 60)])


@pytest.mark.parametrize("k", range(2, 13))
def test_prediction_programs_have_k_minus_2_layers(k: int) -> None:
    program = prediction_program(k)
    model = compile_program(program, longest=300).model
    assert model.spec.n_layers == k - 2
    generator = np.random.default_rng(k)
    lengths = generator.integers(1, 300 // k, (10, k))
    promised = ["".join("ab"[i % 2] * n for i, n in enumerate(row)) for row in lengths]
    check(program, model, [*SHORT, *promised])


def test_dyck_1_up_to_its_longest_input() -> None:
    strings = ["".join(tokens) for n in range(1, 9) for tokens in product("()", repeat=n)]
    deep = ["(" * 500 + ")" * 500, "()" * 500, "(" * 500 + ")" * 499 + "(", ")" + "(" * 999]
    construction = compile_program(DYCK, longest=1000)
    check(DYCK, construction.model, [*strings, *deep, *random_strings(1, 4, 1000, "()")])
    with pytest.raises(ArgumentError, match="at most n_ctx = 1001 positions"):
        construction.model(token_ids(DYCK, ["(" * 1001]))


def test_weights_do_not_grow_with_the_length_and_load_as_a_plain_model(tmp_path: Path) -> None:
    short, long = (compile_program(DYCK, longest=n).model for n in (10, 3000))
    sizes = [[tuple(p.shape) for p in model.parameters()] for model in (short, long)]
    assert sizes[0] == sizes[1]
    save_checkpoint(short, tmp_path / "dyck")
    loaded = load_checkpoint(tmp_path / "dyck")
    assert type(loaded) is SequenceTransformer
    check(DYCK, loaded, ["(())()", ")(", "((((())))"])


def test_float32_is_exact_as_far_as_its_certificate_goes() -> None:
    construction = compile_program(DYCK, longest=200, dtype="float32")
    assert construction.certificate.parts["rounding"] < 0.5
    check(DYCK, construction.model, [*random_strings(2, 20, 200, "()"), "()" * 100])
    with pytest.raises(ArgumentError, match=r"rounding below the margin 0\.5 in float32"):
        compile_program(DYCK, longest=100_000, dtype="float32")
    with pytest.raises(ArgumentError, match=r"rounding below the margin 0\.5 in float64"):
        compile_program(parse('x = 1000000000000 * # "a" > 3'), longest=1000)


def test_names_and_counts_lie_where_the_mechanism_says() -> None:
    construction = compile_program(EVERYTHING)
    mechanism, strings = construction.mechanism, random_strings(3, 8, 60)
    run = evaluate(EVERYTHING, strings)
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(token_ids(EVERYTHING, strings))
    prefix = np.arange(2, run.values["last"].shape[1] + 2)
    inside = np.arange(len(prefix)) < run.lengths[:, None]
    counts = {"# letter": "letter", '# "a"': "letter"}
    assert set(mechanism.directions) > {line.name for line in EVERYTHING.lines} | set(counts)
    for name, direction in mechanism.directions.items():
        held = (cache[mechanism.written[name]] @ direction)[:, 1:].numpy()
        if name in run.values:
            value = run.values[name] / (1 if run.values[name].dtype == bool else prefix)
            if name == "small":
                value = run.values[name]  # of depth 0: as it is
        elif name in counts:
            value = run.values[counts[name]].cumsum(axis=1) / prefix
        else:
            continue
        assert np.abs(held - value)[inside].max() < 1e-12, name


def test_nothing_is_written_before_its_layer() -> None:
    construction = compile_program(EVERYTHING)
    with torch.no_grad():
        _, cache = construction.model.run_with_cache(token_ids(EVERYTHING, ["abba"]))
    for name, hook in construction.mechanism.written.items():
        if hook.startswith("blocks"):
            layer, place = hook.split(".")[1:]
            before = "hook_resid_pre" if place == "hook_resid_mid" else "hook_resid_mid"
            held = cache[f"blocks.{layer}.{before}"] @ construction.mechanism.directions[name]
            assert (held == 0).all(), name


def test_every_head_attends_evenly_to_the_prefix() -> None:
    model = compile_program(DYCK).model
    with torch.no_grad():
        _, cache = model.run_with_cache(token_ids(DYCK, ["(()"]))
    even = torch.tril(torch.ones(4, 4, dtype=torch.float64)) / torch.arange(1, 5)[:, None]
    for layer in range(2):
        assert torch.allclose(cache[f"blocks.{layer}.attn.hook_pattern"][0, 0], even)


def test_unused_lines_are_left_out() -> None:
    program = parse('deep = # (# "a" > 1)\nlast = # "b" > 1')
    construction = compile_program(program)
    assert construction.model.spec.n_layers == 1
    assert "deep" not in construction.mechanism.directions
    check(program, construction.model, SHORT)
    assert construction.task == program


def test_tokens_of_unused_lines_keep_their_ids() -> None:
    program = parse('other = "0"\nlast = # "b" > 1')
    assert compile_program(program).model.spec.d_in == len(vocabulary_of(program)) == 4
    check(program, compile_program(program).model, ["0bxb0", "bb0"])


@pytest.mark.parametrize(
    "text", ["x = true", 'x = # "a" >= 0 || true', 'x = !("b" || 1 < 2)', "x = # true == # true"]
)
def test_constants(text: str) -> None:
    check(parse(text), compile_program(parse(text)).model, SHORT[:40])


def test_tokens_become_ids() -> None:
    assert vocabulary_of(DYCK) == (None, "(", ")", None)
    assert token_ids(DYCK, ["()", "(x))"]).tolist() == [[0, 1, 2, 3, 3], [0, 1, 3, 2, 2]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('x = #> "a" > 1', "must count the past only"),
        ('x = # "a"', "must end with a formula"),
    ],
)
def test_what_cannot_be_compiled_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        compile_program(parse(text))
    with pytest.raises(ArgumentError, match=said + ".*longest must be at least 1, got 0"):
        compile_program(parse(text), longest=0)


def test_a_circuit_carries_and_shares_its_signals() -> None:
    circuit = FfnCircuit(3)
    x, y = (AffineSum(((s, 1.0),)) for s in (1, 2))
    late = circuit.relu(circuit.relu(circuit.relu(x - y) - 0.5) - 0.25)
    circuit.outputs[0] = late + circuit.relu(x - y) * 2.0 + y
    assert len(circuit.relus) == 3
    assert circuit.widths == (3, 4, 4)
