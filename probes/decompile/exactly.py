"""Models that count, exactly: the C-RASP program in the weights, where there is one.

No search and nothing fitted: :func:`probes.decompile.counting.decompile_counting` reads the program
off the weights of a model that averages, looks a fixed number of tokens back and switches on
comparisons of counts. Trained models do none of that exactly; for them the answer is None.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from interp.models.transformer import SequenceTransformer
from interp.rasp.counted import from_counting
from interp.rasp.syntax import Program
from probes.decompile.counting import decompile_counting
from probes.decompile.rows import Rows

__all__ = ["program_of_counts"]


def program_of_counts(model: Any, rows: Rows, seed: int) -> Program | None:
    """The program that stands in a model's weights.

    Args:
        model: Any; of other classes than ours there is none.
        rows: Codes are the model's ids, of which 0 begins every row and stands nowhere else.
        seed: Of the strings that the model is asked about.
    """
    ours = isinstance(model, SequenceTransformer) and rows.encode is None
    if not ours or rows.answers is None or len(rows.answers) != 2:
        return None
    starts = (rows.tokens == 0).sum(1) == 1
    if not (starts.all() and (rows.tokens[:, 0] == 0).all()):
        return None
    texts = rows.vocabulary.texts
    if model.spec.d_in > len(texts):
        return None
    used = set(np.unique(rows.tokens).tolist())
    words = [texts[code] if code in used else None for code in range(1, model.spec.d_in)]
    found = decompile_counting(model, words, seed=seed)
    if found.program is None or found.agreement < 1.0:
        return None
    no, yes = (texts[code] for code in rows.answers)
    return from_counting(found.program, yes, no)
