"""``prooflens extract``: stream a model's activations into a store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from interp.ray_tasks import Backend
from prooflens.cli.outputs import ExtractOutput
from prooflens.cli.usage import (
    OWN_ROWS,
    Adapter,
    Device,
    Dtype,
    RunDtype,
    default_out,
    facts,
    shipped_models,
)

_Model = Annotated[
    str,
    typer.Argument(
        help="A shipped model, a checkpoint's folder, or a Hugging Face name.",
        autocompletion=shipped_models,
    ),
]
_Hooks = Annotated[
    list[str], typer.Option(help="A hook or glob; repeat for more. '!GLOB' takes out.")
]
_Task = Annotated[
    str | None,
    typer.Option(help="KIND or KIND:ARGUMENT=VALUE,…; the model's own if no source is named."),
]
_Tokens = Annotated[Path | None, typer.Option(help="A file of token ids, one row a line.")]
_Dataset = Annotated[
    str | None, typer.Option(help="A Hugging Face data set, or a .jsonl or .parquet file.")
]
_Data = Annotated[
    Path | None,
    typer.Option(help=f"{OWN_ROWS} With labels and mask if they have them."),
]
_StoredDtype = Annotated[Dtype | None, typer.Option(help="What is stored; as it runs by default.")]
_Compression = Annotated[
    Literal["gzip", "lzf"] | None, typer.Option(help="Of the parts; none by default.")
]
_Threads = Annotated[int | None, typer.Option(min=1, help="PyTorch threads, part of the plan.")]
_Backend = Annotated[Backend, typer.Option(help="Ray makes each part a task on your cluster.")]


def extract(
    model: _Model,
    hooks: _Hooks,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the store; by default named after the model.")
    ] = None,
    task: _Task = None,
    tokens: _Tokens = None,
    dataset: _Dataset = None,
    data: _Data = None,
    column: Annotated[str, typer.Option(help="The data set's column.")] = "input_ids",
    split: Annotated[str, typer.Option(help="The data set's split.")] = "train",
    rows: Annotated[int | None, typer.Option(help="Number of rows; needed for a task.")] = None,
    batch: Annotated[int, typer.Option(help="Rows of one forward pass.")] = 32,
    stored_dtype: _StoredDtype = None,
    positions: Annotated[str, typer.Option(help="all, last or START:STOP[:STEP].")] = "all",
    heads: Annotated[str | None, typer.Option(help="Heads to keep, such as 0,3.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the task's sampling.")] = 0,
    part_rows: Annotated[int | None, typer.Option(help="Rows per part file.")] = None,
    compression: _Compression = None,
    threads: _Threads = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the store at --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the store at --out.")
    ] = False,
    device: Device = "cpu",
    dtype: RunDtype = None,
    adapter: Adapter = None,
    backend: _Backend = "local",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
) -> None:
    """Stream a model's activations into a store that can be interrupted and resumed."""
    import torch

    from interp.output import CHECKED, check_output
    from interp.store import plan_extraction
    from prooflens.cli.loading import load_with_data
    from trained.loading import load

    kept, out = _heads(heads), default_out(model, out, "store")
    if not dry_run:
        read = [path for path in (model, tokens, dataset, data, adapter) if path is not None]
        check_output(out, overwrite=True, marker=CHECKED, inputs=read)
    if threads is not None:
        torch.set_num_threads(threads)
    place: dict[str, Any] = {"device": device, "dtype": dtype, "adapter": adapter}
    if data is None:
        built = load(model, **place)
        source = _source(built.card, task, tokens, dataset, column, split)
    else:
        _one_source([task, tokens, dataset, data])
        built, own = load_with_data(model, data, **place)
        source = own.batch
        typer.echo(f"rows: {own.about}", err=True)
    options: dict[str, Any] = {
        "rows": rows,
        "batch": batch,
        "dtype": stored_dtype,
        "positions": positions,
        "heads": kept,
        "seed": seed,
        "part_rows": part_rows,
        "compression": compression,
    }
    if dry_run:
        typer.echo(plan_extraction(built, source, hooks, **options).describe())
        return
    how = {"resume": resume, "overwrite": overwrite, "backend": backend}
    _stream(built, source, hooks, out, options, how, place)


def _stream(
    model: Any,
    source: Any,
    hooks: list[str],
    out: Path,
    options: dict[str, Any],
    how: dict[str, Any],
    place: dict[str, Any],
) -> None:
    """Check the hooks, run the extraction, and print what was stored."""
    from interp.store import extract as run
    from trained.loading import lasting_name, load

    failed = _conformance(model, source, options["rows"], options["seed"])
    about = {"model": lasting_name(model.card.name), "dtype": place["dtype"], "conformance": failed}
    if place["adapter"] is not None:
        about["adapter"] = str(place["adapter"].resolve())
    store = run(
        model,
        source,
        hooks,
        out,
        **options,
        **how,
        loader=partial(load, model.card.name, **place),
        about=about,
        report=typer.echo,
    )
    told = ExtractOutput(
        store=str(out),
        rows=store.rows,
        hooks=list(store.hooks),
        conformance=failed,
        overflows=store.overflows,
    )
    facts(**told)
    typer.echo(f"{store.rows:,} rows of {len(store.hooks)} hooks in {out}")
    if lost := store.overflows:
        total = sum(lost.values())
        typer.echo(f"note: {total:,} finite values became infinite as {options['dtype']}", err=True)


def _source(
    card: Any,
    task: str | None,
    tokens: Path | None,
    dataset: str | None,
    column: str,
    split: str,
) -> Any:
    from interp.store.sources import TokenFile
    from prooflens.cli.loading import task_of

    if not any((task, tokens, dataset)) and card.task is not None:
        return card.task
    _one_source([task, tokens, dataset])
    if tokens is not None:
        return TokenFile(tokens)
    if dataset is not None:
        return _dataset(dataset, column, split, card.tokenizer)
    return task_of(str(task), card)


def _one_source(sources: list[Any]) -> None:
    from interp.errors import ArgumentError

    given = sum(source is not None for source in sources)
    if given != 1:
        raise ArgumentError(
            f"source must be one of --task, --tokens, --dataset and --data, got {given}: give one"
        )


def _dataset(name: str, column: str, split: str, tokenizer: Any) -> Any:
    from interp.errors import ArgumentError
    from interp.reading import regular
    from interp.store.sources import HuggingFaceRows, JsonRows

    tokenize = None if tokenizer is None else (lambda text: tokenizer(text)["input_ids"])
    kind = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text"}.get(
        Path(name).suffix
    )
    if kind is not None:
        regular(name, "dataset", ArgumentError)
        if split != "train":
            raise ArgumentError(f"split must be train for a file, got {split!r}: leave it out")
    if kind == "json":
        return HuggingFaceRows(JsonRows(Path(name)), column, tokenize, name)
    import datasets

    datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)  # told below, in a line
    rows: Any
    try:
        if kind is not None:
            rows = datasets.load_dataset(kind, data_files=name, split=split, streaming=True)
        else:
            rows = datasets.load_dataset(name, split=split, streaming=True)
    except Exception as error:  # the library raises anything
        raise ArgumentError(f"dataset {name!r} cannot be opened: {error}") from error
    return HuggingFaceRows(rows, column, tokenize, name)


def _heads(text: str | None) -> list[int] | None:
    from interp.errors import ArgumentError

    if text is None:
        return None
    try:
        return [int(head) for head in text.split(",")]
    except ValueError:
        raise ArgumentError(f"heads must be integers and commas, got {text!r}: as 0,3") from None


def _conformance(model: Any, source: Any, rows: int | None, seed: int) -> list[str]:
    """Return, and print, the relations that fail in a conformance check on two rows."""
    from interp.errors import ProoflensError, StoreError
    from interp.hooks.conformance import conformance
    from interp.store.sources import as_source

    first = as_source(source, rows=rows, seed=seed).first(2)["inputs"]
    try:
        failed = [str(check) for check in conformance(model, first, changes=False).failures]
    except ProoflensError:
        raise
    except Exception as error:
        context = f"; its context is {model.card.n_ctx}" if model.card.n_ctx else ""
        raise StoreError(
            f"the model fails on rows of {first.shape[1]} positions: {error}{context}"
        ) from error
    for line in failed:
        typer.echo(f"note: hooks do not conform: {line}", err=True)
    return failed
