"""Is every family of models right, or refused with the true reason?

Tiny checkpoints in the real layouts (:mod:`analyses.benchmarks.family_cases`) × what is asked of
them (:mod:`analyses.benchmarks.family_cells`). A cell is *right* (the reference's numbers),
*refused* (with a reason of a fixed list, the one that is true of the case), or *wrong*: other
numbers, another reason, or an error that is not ours.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import prooflens as pl
from analyses.benchmarks.family_cases import CASES, FamilyCase, write
from analyses.benchmarks.family_cells import OPERATIONS, FamilyModel
from analyses.benchmarks.result import write_result
from prooflens.architectures import quiet_transformers
from prooflens.files import output_file

__all__ = ["REASONS", "main", "measure_case", "page_of"]

_CLOSE = 1e-4

REASONS: Mapping[str, str] = {
    "quantised": r"is quantised by [\w-]+: dequantise it first",
    "encoder-decoder": r"is an? \w+: an encoder and a decoder that reads it",
    "encoder": r"is an? \w+: an encoder, not a decoder",
    "encoder, norms after": r"is an? \w+: an encoder with norms after each sublayer, not a dec",
    "other head": r"is an? \w+: it has no trained map to next tokens",
    "no head": r"is an? \w+: it has no map to next tokens",
    "not attention": r"is an? \w+: it has layers that are not attention alone",
    "latent attention": r"is an? \w+: its keys and values are made of one short vector",
    "norms after": r"is an? \w+: a decoder with norms after each sublayer",
    "not wrapped": r"which TransformerLens does not wrap|cannot be wrapped by TransformerBridge",
    "hooks": r"blocks\.\d+: .*\(off by .* of the largest value\)",
    "other terms": r"this architecture adds something else to its stream|does something that is",
    "unread tensors": r"tensors that \w+ has no place for|attention tensors that .* does not have",
    "adapter": r"holds an adapter alone, whose base model is someone/a-base-model",
    "pickled": r"holds only pickled weights",
    "damaged": r"shards are missing from|values of \d+ that are not finite",
    "unknown layout": r"model_type '\w[\w-]*' is not known \(known: ",
    "rotary scaling": r"rotary scaling '.*' is not known",
    "renamed tensors": r"\d+ go by other names",
    "no tokenizer": r"as the model has no tokenizer",
}
"""Name of a reason for refusing a checkpoint → regular expression that the refusal must match."""


def measure_case(case: FamilyCase) -> Iterator[tuple[str, str]]:
    """Yield the name of each operation with its outcome: ``right``, ``refused: REASON`` or ``wrong:
    …``."""
    with tempfile.TemporaryDirectory() as place, _cache(Path(place) / "cache"):
        folder = Path(place) / "model"
        write(case, folder)
        adapter = folder / case.adapter if case.adapter else None
        model, told = _load_case(folder, case, adapter)
        if model is None:
            yield from ((name, told) for name in OPERATIONS)
            return
        reference = _reference(case, folder)
        for name, operation in OPERATIONS.items():
            scratch = Path(place) / name
            scratch.mkdir()
            yield (
                name,
                _ask(
                    operation, FamilyModel(folder, model, reference, scratch, adapter), case, name
                ),
            )


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """Store dequantised files in this folder instead of the user's cache, as long as the block
    runs."""
    before = os.environ.get("PROOFLENS_CACHE")
    os.environ["PROOFLENS_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("PROOFLENS_CACHE")
        if before is not None:
            os.environ["PROOFLENS_CACHE"] = before


def _load_case(folder: Path, case: FamilyCase, adapter: Path | None) -> tuple[Any, str]:
    try:
        return pl.load(folder, adapter=adapter), ""
    except pl.errors.ProoflensError as error:
        return None, _refusal_cell(str(error), case.reason)
    except Exception as error:
        return None, f"wrong: {_first_line(error)}"


def _refusal_cell(words: str, reason: str) -> str:
    """Return the cell of the table for a refusal, whose reason must be the one that the case
    names."""
    words = words.split("no pretrained model: ")[-1]
    given = [name for name, pattern in REASONS.items() if re.search(pattern, words)]
    if given != [reason]:
        return f"wrong: refused as {given or 'nothing known'}, not {reason!r}: {words[:300]}"
    return f"refused: {reason}"


def _reference(case: FamilyCase, folder: Path) -> Any:
    import transformers

    kind = getattr(transformers, case.model)
    with quiet_transformers():
        options = {"dtype": torch.float32, "attn_implementation": "eager", **case.reference}
        return kind.from_pretrained(folder, **options).eval()


def _ask(operation: Any, subject: FamilyModel, case: FamilyCase, name: str) -> str:
    try:
        off = operation(subject)
    except pl.errors.ProoflensError as error:
        return _refusal_cell(str(error), case.lacks.get(name, ""))
    except Exception as error:
        return f"wrong: {_first_line(error)}"
    return "right" if off <= _CLOSE else f"wrong: off by {off:.2g}"


def _first_line(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {said[:200]}"


def main(
    only: Annotated[str, typer.Option(help="Run the families whose name has this.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the JSON here too.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write the table as a page, and as JSON beside it in data/.")
    ] = None,
) -> None:
    """Ask every family everything, print the table and the JSON."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    table: dict[str, dict[str, str]] = {}
    for case in CASES:
        if only in case.name:
            table[case.name] = dict(measure_case(case))
            marks = [_MARKS[cell.partition(":")[0]] for cell in table[case.name].values()]
            sys.stdout.write(f"{case.name:<28} {' '.join(marks)}\n")
            for cell in dict.fromkeys(table[case.name].values()):
                if cell != "right":
                    at = [name for name, one in table[case.name].items() if one == cell]
                    sys.stdout.write(f"    {', '.join(at)}: {cell}\n")
            sys.stdout.flush()
    cells = Counter(cell.partition(":")[0] for row in table.values() for cell in row.values())
    counts = {name: cells[name] for name in ("right", "refused", "wrong")}
    if page is not None:
        kept = page.parent / "data" / f"{page.stem}.json"
        with output_file(kept, overwrite=True) as draft:
            draft.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        with output_file(page, overwrite=True) as draft:
            draft.write_text(page_of(table), encoding="utf-8")
    write_result({"families": len(table), **counts}, out)


_MARKS = {"right": "+", "refused": "-", "wrong": "X"}
_SIGNS = {"right": "✓", "refused": "–", "wrong": "**wrong**"}
_OPENING = """# Families of models: right or refused

Tiny random checkpoints in the layouts of the real ones, written by transformers: two layers, four
heads, a width of 32, 64 tokens, with the windows, softcaps, scales and biases that a family may
have. ✓: the numbers are those of transformers, or of a product by hand, to one part in ten
thousand. –: refused, for the reason in the last column. This page is written by
`python -m analyses benchmark families --page docs/families.md`.

What is asked: **logits**; the attention **patterns** of every head; the **stream** after every
layer, as its hook has it and as the sum of what heads, FFNs and embeddings write; whether direct
**attribution** sums to the logit; whether circuits from **weights** alone give the attention and
what it writes, and in the token basis the product by hand; **ablation** of a head and an FFN
against hooks set by hand; **padding**: rows with pads on either side against each row alone;
**texts** against the tokenizer of the folder; **roles**: that they are looked for, with the
attention they rest on; **export** and loading again.
"""


_WORDS = {
    "quantised": "a packed number format: dequantise it first",
    "encoder-decoder": "an encoder and a decoder that reads it",
    "encoder": "an encoder, not a decoder: tokens see those after them",
    "encoder, norms after": "an encoder with norms after each sublayer, not a decoder",
    "other head": "a classifier, a reward model, …: no trained map to next tokens",
    "no head": "a body without a map to next tokens",
    "not attention": "layers of state spaces, convolutions or linear attention",
    "latent attention": "keys and values made of one short vector, which no hook shows by heads",
    "norms after": "a decoder with norms after each sublayer: its stream is no sum of parts",
    "not wrapped": "TransformerLens has no adapter for the class, or the adapter fails",
    "hooks": "the hooks do not carry what their names say, with the relation that fails",
    "other terms": "on the batch, parts do not sum to the stream, or readouts to the logits",
    "unread tensors": "tensors that nothing here reads, which would change the numbers",
    "adapter": "an adapter alone; its base model is named",
    "pickled": "pickled weights, which can run code",
    "damaged": "shards that are missing, numbers that are not finite",
    "unknown layout": "no layout of head weights is known for the type (a mapping can be given)",
    "rotary scaling": "rotary frequencies that differ by layer: lags are not turned",
    "renamed tensors": "the wrapping has split matrices that the format stores joined",
    "no tokenizer": "the folder holds none",
}
"""Name of a reason for refusing a checkpoint → its explanation on the page."""


def page_of(table: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table as a page in Markdown."""
    cells = Counter(cell.partition(":")[0] for row in table.values() for cell in row.values())
    counts = ", ".join(f"{cells[name]} {name}" for name in ("right", "refused", "wrong"))
    lines = [_OPENING, f"{len(table)} checkpoints × {len(OPERATIONS)} questions: {counts}.", ""]
    lines += ["| reason | what is said |", "|---|---|"]
    lines += [f"| {name} | {words} |" for name, words in _WORDS.items()]
    groups = {case.name: case.group for case in CASES}
    for group in dict.fromkeys(groups[name] for name in table):
        head = ["", f"## {group[0].upper()}{group[1:]}", "", f"| | {' | '.join(OPERATIONS)} | |"]
        lines += [*head, "|---" * (len(OPERATIONS) + 2) + "|"]
        lines += [_line(name, row) for name, row in table.items() if groups[name] == group]
    return "\n".join(lines) + "\n"


def _line(name: str, row: Mapping[str, str]) -> str:
    signs = " | ".join(_SIGNS[cell.partition(":")[0]] for cell in row.values())
    reasons = dict.fromkeys(cell.partition(": ")[2] for cell in row.values() if cell != "right")
    return f"| {name} | {signs} | {'; '.join(reasons)} |"
