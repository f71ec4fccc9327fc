"""Constructions give back their mechanism, and the parts that decide what is answered."""

import re

import numpy as np
import pytest

import prooflens as pl
from interp.errors import ArgumentError
from interp.interventions.components import components
from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer
from interp.program.decision_parser import parse
from interp.program.evaluation import NONE, Vocabulary
from interp.program.printer import program_text
from interp.tasks.memory import FixedMemory
from probes.decompile.decisions import (
    DecisionTrial,
    Fidelity,
    TokenTable,
    output_decisions,
    outputs_of,
)
from probes.decompile.evidence import ffn_table
from probes.decompile.judging import Judge, Judged, answer, choose_words
from probes.decompile.rows import TokenRows, split
from probes.decompile.search import Candidate
from probes.decompile.workflow import decompile

RIGHT = Fidelity(1.0, 1.0)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_compiled_program_is_read_off_exactly(hidden: bool) -> None:
    made = pl.proofs.compile_program(pl.crasp.membership_program(2), longest=50)
    made = pl.proofs.random_basis(made, seed=1) if hidden else made
    found = pl.decompile(made, count=60)
    assert found.answer == "found"
    assert found.best.exact
    assert found.best.held == found.best.longer == found.best.off_task == RIGHT
    text = program_text(found.best.program)
    assert text.count("= #") == 4, "two counts of each letter's chain"
    assert found.proof is not None
    assert set(found.proof.model.values()) == set(found.proof.found.values()) == {1.0}


def test_guards_and_predicates_are_read_off_and_stand_for_heads() -> None:
    """The text runs again, and the head of the guard is the one that a count needs most."""
    text = '#import pred2\n#import pos_even\nm = #[pred2] ("b" && pos_even)\n'
    text += 'answer = # !"a" >= 2 && m >= 1 || "a"'
    found = pl.decompile(
        pl.proofs.compile_program(pl.crasp.parse_program(text), longest=40), count=60
    )
    program = found.best.program
    assert found.best.exact
    assert found.best.held == found.best.longer == found.best.off_task == RIGHT
    assert parse(program_text(program)) == program
    assert {p.name for p in program.imports} == {"pred2", "pos_even"}
    [guarded] = [one for one in found.heads if "p1" in one.primitive.words]
    assert guarded.gain == 1.0
    assert guarded.head.head == 1, "the lags of a layer's heads ascend: 0 is the whole prefix"


def test_the_construction_of_a_fixed_memory_gives_back_its_lags() -> None:
    """Signed sums of heads select lags, none of which a head looks at."""
    task = FixedMemory((1, 3), "multiplexer", length=9)
    found = pl.decompile(pl.construct(task), count=24)
    assert found.answer == "found"
    text = program_text(found.best.program)
    assert {int(k) for k in re.findall(r"key.position == position - (\d+)", text)} == set(task.lags)
    assert found.best.off_task.gain == 1.0


def judged_program(program: str, gain: float = 1.0) -> Judged:
    one = Fidelity(0.95, gain)
    return Judged(parse(program), {}, one, one, one)


@pytest.mark.parametrize(
    ("program", "gain", "said"),
    [
        ("next = token", 1.0, "no attention needed"),
        ("next = token + 1", 0.95, "no attention needed"),
        ("next = token", 0.5, "not found"),
        ("next = last(key.token where key.token != token)", 1.0, "found"),
        ("next = token if position % 2 == 0 else token + 1", 1.0, "found"),
    ],
)
def test_what_reads_the_current_token_alone_needs_no_attention(
    program: str, gain: float, said: str
) -> None:
    assert answer(judged_program(program, gain), (0.5, 0.5)) == said


def test_a_long_formula_is_not_short() -> None:
    part = 'count(key.token == "a") >= 1'
    few, many = (" && ".join([part] * times) for times in (2, 3))
    assert judged_program(f'next = "1" if {few} else "0"').is_found
    assert not judged_program(f'next = "1" if {many} else "0"').is_found
    named = "".join(f"x{k} = {part}\n" for k in range(5))
    assert judged_program(f'{named}next = "1" if x1 && x2 && x3 && x4 else "0"').is_found


def _judge(model_decides: str) -> Judge:
    """Rows of two numbers that grow; off the task they come in any order."""
    vocabulary = Vocabulary((*map(str, range(9)), "<bos>", "<sep>"))
    rng = np.random.default_rng(0)
    pairs = {tuple(sorted(rng.choice(9, 2, replace=False).tolist())) for _ in range(90)}
    tokens = np.array([[9, low, high, 10] for low, high in sorted(pairs)])
    asked = np.zeros(tokens.shape, dtype=bool)
    asked[:, 3] = True
    rows = TokenRows(tokens, asked, None, vocabulary, "next token")
    data = split(rows, seed=0)
    pick = np.min if model_decides == "least" else (lambda x, axis: x[:, 0])
    truth = {name: pick(part.tokens[:, 1:3], axis=1) for name, part in vars(data).items()}
    return Judge(data, truth, TokenTable(data.fit, truth["fit"]), 20, True)


@pytest.mark.parametrize("decides", ["least", "first"])
def test_rows_off_the_task_tell_the_least_from_the_first(decides: str) -> None:
    judge = _judge(decides)
    inside = 'key.token where !(key.token in {"<bos>", "<sep>"})'
    program = parse(f"commonest_token = commonest({inside})\nnext = commonest_token")
    best, open_ = choose_words(judge, judge.one(Candidate(program, {"commonest_token": 3})))
    assert program_text(best.program).startswith(f"{decides}_token = {decides}(")
    assert best.sources == {f"{decides}_token": 3}
    assert best.off_task.match == 1.0
    alike = {one.instead for one in open_}
    assert alike == ({"commonest", "rarest"} & alike), "the other of least and first is ruled out"


def _untrained_model(outputs: int) -> SequenceTransformer:
    spec = TransformerSpec(
        d_in=4, d_out=outputs, n_ctx=8, d_model=8, n_layers=1, n_heads=1, d_head=8, ffn=(8,)
    )
    return SequenceTransformer(spec, seed=0)


def _rows(length: int, objective: str, words: tuple[str, ...] = tuple("abcd")) -> TokenRows:
    tokens = np.random.default_rng(0).integers(0, 4, (30, length))
    return TokenRows(tokens, tokens != NONE, None, Vocabulary(words), objective)


@pytest.mark.parametrize(
    ("outputs", "rows", "said"),
    [
        (4, _rows(12, "sets"), "must have at most 8 tokens, got 12"),
        (4, _rows(6, "sets", tuple("abcde")), "must have at most 4 tokens, .* got 5"),
        (2, _rows(6, "next token"), 'must have "0" and "1"'),
        (3, _rows(6, "sets"), "must have at most 3 tokens"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused(
    outputs: int, rows: TokenRows, said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        decompile(_untrained_model(outputs), rows)


def test_outputs_beyond_the_vocabulary_are_not_looked_at() -> None:
    rows = _rows(6, "next token")
    outputs = np.zeros((180, 7))
    outputs[..., 5], outputs[..., 2] = 9.0, 1.0
    assert set(output_decisions(outputs, rows).tolist()) == {2}
    assert output_decisions(outputs, _rows(6, "sets")).shape == (180, 4)


def test_an_ffn_is_a_table_over_values_of_its_own_position() -> None:
    model, rows = _untrained_model(4), _rows(6, "next token")
    held = 'count(key.position % 3 == position % 3 && key.token == "a")'
    program = parse(f'next = "a" if {held} % 2 == 0 && position % 3 == 1 else "b"')
    truth = output_decisions(outputs_of(model, rows), rows)
    part = next(one for one in components(model) if one.kind == "ffn")
    found = ffn_table(DecisionTrial(model, rows, TokenTable(rows, truth)), part, program, rows)
    values = {"token", f"{held} % 2", held, "position % 3"}
    assert set(found.reads) <= values
    assert found.gain <= 1.0


def test_fewer_lines_than_tokens_that_may_follow_are_refused() -> None:
    with pytest.raises(ArgumentError, match="as many as the shortest program here has"):
        decompile(_untrained_model(4), _rows(6, "sets"), lines=1)


def test_what_follows_the_last_question_is_no_content() -> None:
    tokens = np.array([[0, 1, 2, 3], [0, 2, 1, 4], [0, 1, 1, 3]])
    asked = np.zeros(tokens.shape, dtype=bool)
    asked[:, 2] = True
    rows = TokenRows(tokens, asked, None, Vocabulary(tuple("zabcd")), "next token")
    assert rows.content().tolist() == [1, 2]


def test_tokens_are_shifted_to_the_numbers_that_they_write() -> None:
    words = Vocabulary(("7", "x", "-2", "5", "6", "10"))
    tokens, by = np.array([[0, 1, 2, 3, 4, 5, NONE]]), np.array([[-1, 1, 7, 1, 1, 1, 0]])
    wanted = [4, NONE, 3, 4, 0, NONE, NONE]
    assert words.shift_tokens(tokens, by).tolist() == [wanted]
    assert words.shift_tokens(tokens, np.array(0)).tolist() == [[0, NONE, 2, 3, 4, 5, NONE]]
    assert Vocabulary(("a",)).shift_tokens(np.array([0]), np.array([1])).tolist() == [NONE]
