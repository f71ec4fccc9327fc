"""Recognisers of which every string can be looked at: what is found is right on all of them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import prooflens as pl
from interp.program.decision_parser import parse
from interp.program.evaluation import NONE, Vocabulary, run
from probes.decompile.decisions import TokenTable, decide
from probes.decompile.judging import Judge, answer
from probes.decompile.rows import TokenRows, every_string, split
from probes.decompile.search import Candidate
from probes.decompile.workflow import decompile
from prooflens.pages.decompiled import sentence

LONGEST = 8
WORDS = ("<bos>", "(", ")", "<other>", "no", "yes")


def is_balanced(string: tuple[int, ...]) -> bool:
    open_ = 0
    for closes in string:
        open_ += -1 if closes else 1
        if open_ < 0:
            return False
    return open_ == 0


def rows_of(strings: list[tuple[int, ...]]) -> TokenRows:
    tokens = np.full((len(strings), 1 + max(map(len, strings))), NONE)
    tokens[:, 0] = 0
    labels = np.full_like(tokens, NONE)
    for row, string in enumerate(strings):
        tokens[row, 1 : len(string) + 1] = np.array(string) + 1
        labels[row, len(string)] = 4 + is_balanced(string)
    options = {"answers": (4, 5), "threshold": 0.5, "encode": lambda codes: codes}
    return TokenRows(tokens, labels != NONE, labels, Vocabulary(WORDS), "next token", **options)


def strings(longest: int, shortest: int = 1) -> list[tuple[int, ...]]:
    return [s for n in range(shortest, longest + 1) for s in product((0, 1), repeat=n)]


@pytest.fixture(scope="module")
def some() -> TokenRows:
    rng = np.random.default_rng(0)
    known = strings(LONGEST)
    others = [s for s in known if not is_balanced(s)]
    drawn = [others[k] for k in rng.permutation(len(others))[:120]]
    return rows_of(sorted({*(s for s in known if is_balanced(s)), *drawn, (0,), (1,)}))


def test_brackets_come_back_as_the_language(some: TokenRows) -> None:
    """Rows with an encoding: the program is searched for, not read off the weights."""
    language = pl.tasks.language("dyck-1")
    model = pl.proofs.compile_program(language.membership, longest=LONGEST).model
    found = decompile(model, some)
    assert (found.answer, found.best.exact) == ("found", False)
    assert found.record()["strings"] == 2 ** (LONGEST + 1) - 2
    assert found.record()["match_every_string"] == 1.0
    assert "alike on all 510 strings" in sentence(found)
    longer = rows_of(strings(12, 10))
    said = decide(run(found.best.program, longer.tokens, longer.vocabulary), longer)
    assert np.array_equal(said, longer.labels[longer.asked]), "on lengths that it never saw, too"


def test_right_on_nearly_all_strings_is_not_found(some: TokenRows) -> None:
    data = split(some)
    truth = {
        name: np.array([4 + is_balanced(tuple(s[s > 0] - 1)) for s in part.tokens])
        for name, part in vars(data).items()
    }
    judge = Judge(data, truth, TokenTable(data.fit, truth["fit"]), 20, True)
    even = 'count(key.token == "(") == count(key.token == ")")'
    first = 'first(key.token where key.position == 1) == "("'
    last = 'token == ")"'
    second = 'first(key.token where key.position == 2) == "(" || token != "("'
    text = f'next = "yes" if {even} && {first} && {last} && ({second}) else "no"'
    one = judge.one(Candidate(parse(text), {}))
    wrong = sum(s[0] == 0 and s[-1] == 1 and 2 * sum(s) == len(s) for s in strings(LONGEST))
    wrong -= sum(map(is_balanced, strings(LONGEST)))
    assert one.every.match == pytest.approx(1 - wrong / 510)
    assert one.every.match > 0.9
    assert not one.is_found
    assert answer(one, (0.5, 0.5)) == answer(one, (1.0, 1.0)) == "not found"
    assert {name for name, *_ in judge.differ(one)} >= {"every"}


def test_every_string_stands_once_between_what_does_not_vary(some: TokenRows) -> None:
    every = every_string(some)
    assert every is not None
    told = {tuple((row[row > 0] - 1).tolist()) for row in every.tokens}
    assert len(told) == len(every)
    assert told == set(strings(LONGEST))
    assert (every.tokens[:, 0] == 0).all()
    assert np.array_equal(every.asked.argmax(1), every.lengths - 1)


def test_strings_that_are_not_all_of_the_task_are_not_looked_at(some: TokenRows) -> None:
    often = replace(some, asked=some.tokens > 0, labels=np.where(some.tokens > 0, 4, NONE))
    assert every_string(often) is None, "a row that asks often shows strings of its language"
    assert every_string(replace(some, labels=None)) is None
    assert every_string(some[[is_balanced(tuple(s[s > 0] - 1)) for s in some.tokens]]) is None
    assert len(split(often).every) == 0
    many = rows_of([tuple(s) for s in np.random.default_rng(0).integers(0, 2, (40, 18)).tolist()])
    assert every_string(many) is None, "2^18"
