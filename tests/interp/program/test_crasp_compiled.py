"""Programs as hypothesis makes them up, compiled, against the evaluator at every position."""

import numpy as np
import pytest
import torch
from crasp_trees import Parts, program_parts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interp.errors import ArgumentError
from interp.program.analysis import depth
from interp.program.evaluation import evaluate
from interp.program.syntax import Program
from interp.proofs.depth.compiler import compile_program, token_ids


@pytest.mark.parametrize("precision", ["ramp", "sign"])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=program_parts(future=False, lines=3), rows=st.lists(
    st.text("ab", min_size=1, max_size=12), min_size=1, max_size=6))  # fmt: skip
def test_any_past_only_program(precision: str, parts: Parts, rows: list[str]) -> None:
    program = Program(parts[0], imports=parts[1])
    try:
        model = compile_program(program, longest=12, precision=precision).model
    except ArgumentError as error:
        if "cases a comparison" not in str(error):
            raise
        return
    assert model.spec.n_layers == depth(program)
    wanted = evaluate(program, rows).values[program.lines[-1].name]
    with torch.no_grad():
        output = model(token_ids(program, rows))[:, 1:, 0].numpy()
    inside = np.arange(wanted.shape[1]) < np.array([len(row) for row in rows])[:, None]
    assert (output == wanted)[inside].all()
