"""``prooflens inspect``: what every head of a pretrained model does, and what depends on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prooflens.cli.usage import OWN_ROWS, Backend, Device, RunDtype, facts, progress, shipped_models

if TYPE_CHECKING:
    from interp.models.pretrained import Pretrained
    from interp.weights.head_weights import HeadWeights

__all__ = ["inspect"]

_QUICK = 16


_Model = Annotated[
    str,
    typer.Argument(help="A shipped model, a folder, or a hub id.", autocompletion=shipped_models),
]
_Out = Annotated[Path, typer.Option(help="Folder of the report, tables and stores.")]
_Text = Annotated[str | None, typer.Option(help="A text file, or a text, to try the model on.")]
_Data = Annotated[
    Path | None,
    typer.Option(help=OWN_ROWS),
]
_From = Annotated[
    Path | None,
    typer.Option(help="Rows of token ids (as --data): random rows hold their tokens alone."),
]
_Effects = Annotated[
    bool,
    typer.Option(
        "--effects",
        help="The loss without every head and FFN; of large models only heads with a role's "
        "behaviour are ablated otherwise.",
    ),
]
_Code = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run a repository's own Python code.")
]
_Mapping = Annotated[
    Path | None,
    typer.Option(help="TOML or JSON file: where an unknown architecture keeps its weights."),
]
_Quick = Annotated[
    bool, typer.Option("--quick", help="At most 16 rows of every trial, for wider intervals.")
]


def inspect(
    model: _Model,
    out: _Out,
    text: _Text = None,
    data: _Data = None,
    tokens_from: _From = None,
    rows: Annotated[int, typer.Option(help="Rows of every trial.")] = 32,
    length: Annotated[int, typer.Option(help="Tokens of a row, at most.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows and nulls.")] = 0,
    quick: _Quick = False,
    effects: _Effects = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    trust_remote_code: _Code = False,
    device: Device = "cpu",
    dtype: RunDtype = None,
    mapping: _Mapping = None,
    backend: Annotated[
        Backend,
        typer.Option(help="Ray makes the losses without components tasks on your cluster."),
    ] = "local",
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
) -> None:
    """Try every head on random tokens (and a text), with nulls, and decide its roles."""
    from interp.output import check_output
    from prooflens.cli.text import text_of

    words = None if text is None else text_of(text)
    place, rows = _folder_of(model), min(rows, _QUICK) if quick else rows
    inputs = [place, *(given for given in (text, data, tokens_from, mapping) if given is not None)]
    check_output(out, overwrite=overwrite or resume, marker=".prooflens-inspect", inputs=inputs)
    given: dict[str, Any] = {"text": words, "data": data, "tokens_from": tokens_from}

    from probes.inspection.heads import inspect_heads, inspection_folder
    from probes.inspection.inspected_rows import inspected_rows
    from prooflens.cli.steps import steps
    from prooflens.pages.inspection import write_inspection

    step = steps()
    how: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    how |= {"device": device, "dtype": dtype}
    found, factors = _loaded(model, place, mapping, how, step)
    with inspection_folder(out, resume=resume, overwrite=overwrite) as folder:
        chosen = inspected_rows(found, **given, rows=rows, length=length, seed=seed)
        inspected = inspect_heads(
            found,
            factors,
            chosen,
            folder,
            seed=seed,
            effects=effects,
            resume=resume,
            backend=backend,
            loader=partial(_model_of, place, how),
            step=step,
            watch=progress("the loss without each"),
        )
        said = write_inspection(inspected, folder, step)
    for line in said:
        typer.echo(line)
    for note in inspected.notes:
        typer.echo(f"note: {note}", err=True)
    facts(findings=said, notes=inspected.notes, report=out / "report.html")
    typer.echo(f"report: {out / 'report.html'}")


def _loaded(
    model: str,
    place: str,
    mapping: Path | None,
    how: dict[str, Any],
    step: Callable[[str], None],
) -> tuple[Pretrained, HeadWeights]:
    """The model under the name that was given, and the weights of its heads; a mapping is refused
    before the model is loaded."""
    from dataclasses import replace

    from interp.models.pretrained import load_pretrained
    from interp.weights.head_weights import head_weights
    from interp.weights.head_weights.mapping import layout_of_mapping, read_mapping

    layout = None if mapping is None else read_mapping(mapping)
    if layout is not None:
        layout_of_mapping(layout)
    step(f"loading {model}")
    found = replace(load_pretrained(place, **how), name=model)
    return found, head_weights(place, mapping=layout, revision=how["revision"])


def _model_of(place: str, how: dict[str, Any]) -> Any:
    """The model alone, as workers load it."""
    from interp.models.pretrained import load_pretrained

    return load_pretrained(place, **how).model


def _folder_of(model: str) -> str:
    from trained.loading import folder_of

    return folder_of(model)
