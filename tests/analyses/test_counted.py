"""C-RASP programs decide the same on rows that begin with BOS as on the strings after it."""

from itertools import product

import numpy as np
import pytest

from analyses.benchmarks.random_programs import LETTERS, random_program
from interp.program.decision_parser import parse
from interp.program.evaluation import Vocabulary, evaluate_codes, run
from interp.program.parser import parse_program
from interp.program.printer import program_text

WORDS = Vocabulary(("<bos>", *LETTERS, "0", "1"))
YES = WORDS.codes["1"]


def strings(length: int) -> np.ndarray:
    return np.array(list(product(range(len(LETTERS)), repeat=length)))


def same(program) -> bool:
    codes = strings(6)
    wanted = evaluate_codes(program, codes, LETTERS).values[program.lines[-1].name]
    rows = np.concatenate([np.zeros((len(codes), 1), dtype=np.int64), codes + 1], axis=1)
    written = program.deciding("1", "0")
    assert parse(program_text(written)) == written
    found = run(written, rows, WORDS).chosen
    return bool(((found[:, 1:] == YES) == wanted).all())


@pytest.mark.parametrize("seed", range(2))
def test_random_programs_mean_the_same(seed: int) -> None:
    assert same(random_program(seed, predicates=True)[0])


@pytest.mark.parametrize(
    "text",
    [
        "answer = # true >= 3",
        'answer = # !"a" > # "a"',
        'n = # (# "a" >= 1 && "b")\nanswer = n - # (# "a" >= 1) >= -2',
        'answer = min(# "a", 2 * # "b") < max(# "c", 1)',
        'answer = (# "a" if "b" else # "b") == 1',
        "#import pred2\nanswer = #[pred2] true >= 1",
        'E = "a"\nF = E\nanswer = # F >= # (F && E)',
        "answer = #> true >= 3",
        '#import pos_mod3_1\nanswer = # pos_mod3_1 > # "a" || pos_mod3_1',
    ],
)
def test_every_kind_of_part(text: str) -> None:
    assert same(parse_program(text))
