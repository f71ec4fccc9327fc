"""How fast is extraction, and does its memory grow?

    python -m analyses benchmark extraction [--rows 64] [--batch 8] [--repeats 3] [--threads 2]

GPT-2 small's architecture with random weights, rows of 64 tokens, hooks ``resid_post`` and
``pattern`` of layers 0–5 and of all layers. Four ways take turns on the same rows in the same
process; each one's best turn counts, since other work on the machine can only slow one:

    forward          the bare forward to the last needed layer, nothing stored
    extract          ``interp.store.extract`` from the end of its plan to the complete store
    TransformerLens  the loop users write: ``run_with_cache`` with a names filter, h5py appends
    tuned            the same loop stopped after the last layer, whole-row chunks, fletcher32,
                     files of 64 MiB closed, fsynced and hashed

The last line is JSON: ``vs_forward``, ``vs_transformerlens``, ``vs_tuned`` (best turn against best
turn, the smaller of the two hook sets) and ``memory_growth`` (of the peak, as a share, when rows
grow eightfold; the larger of the two). Numbers of one machine; ratios travel better than rates.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import h5py
import torch
import typer
from torch import Tensor

from prooflens.files import fsync
from prooflens.hooks import TransformerBridge
from prooflens.store import chunk_shape, extract, sha256_file

__all__ = ["HOOK_SETS", "HookSet", "main"]

_LENGTH, _VOCABULARY, _LAYERS = 64, 50257, 12
_PART_BYTES = 64 << 20
_GROWTH = 8


@dataclass(frozen=True)
class HookSet:
    """The hooks ``resid_post`` and ``pattern`` of the first layers."""

    name: str
    layers: int

    @property
    def hooks(self) -> list[str]:
        """The names of the hooks."""
        kinds = ("attn.hook_pattern", "hook_resid_post")
        return [f"blocks.{layer}.{kind}" for layer in range(self.layers) for kind in kinds]

    @property
    def after(self) -> str:
        """The name of the hook that fires right after the last of these hooks."""
        return f"blocks.{self.layers}.hook_in" if self.layers < _LAYERS else "ln_final.hook_in"


HOOK_SETS = (HookSet("layers 0-5", 6), HookSet("all layers", _LAYERS))


class _Stop(BaseException):
    pass


@contextmanager
def _stopping(model: Any, hook: str) -> Iterator[None]:
    """End every forward pass when ``hook`` fires, as long as the block runs."""

    def stop(values: Any, hook: Any) -> None:
        raise _Stop

    point = model.hook_dict[hook]
    handle = point.add_hook(stop)
    try:
        yield
    finally:
        handle.hook.remove()
        point.fwd_hooks.remove(handle)


def build_model(folder: Path) -> Any:
    """Return a model with GPT-2 small's architecture, random weights and eager attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu").eval()


def _rows(n: int) -> Tensor:
    return torch.randint(0, _VOCABULARY, (n, _LENGTH), generator=torch.Generator().manual_seed(0))


def _forward(model: Any, rows: Tensor, batch: int, chosen: HookSet, out: Path) -> float:
    started = time.perf_counter()
    with torch.no_grad(), _stopping(model, chosen.after):
        for tokens in torch.split(rows, batch):
            try:
                model(tokens, return_type=None)
            except _Stop:
                continue
    return time.perf_counter() - started


def _extract(model: Any, rows: Tensor, batch: int, chosen: HookSet, out: Path) -> float:
    planned: list[float] = []
    extract(
        model,
        rows,
        chosen.hooks,
        out / "store",
        batch=batch,
        report=lambda text: planned.append(time.perf_counter()),
    )
    return time.perf_counter() - planned[0]


def _users_loop(model: Any, rows: Tensor, batch: int, chosen: HookSet, out: Path) -> float:
    started = time.perf_counter()
    with h5py.File(out / "appended.h5", "w") as file, torch.no_grad():
        for tokens in torch.split(rows, batch):
            _, cache = model.run_with_cache(tokens, names_filter=chosen.hooks)
            for hook in chosen.hooks:
                values = cache[hook].numpy()
                if hook not in file:
                    shape = values.shape[1:]
                    file.create_dataset(hook, (0, *shape), values.dtype, maxshape=(None, *shape))
                file[hook].resize(len(file[hook]) + len(values), axis=0)
                file[hook][-len(values) :] = values
    return time.perf_counter() - started


def _run_tuned_loop(model: Any, rows: Tensor, batch: int, chosen: HookSet, out: Path) -> float:
    row_bytes = chosen.layers * 4 * (_LENGTH * 768 + 12 * _LENGTH * _LENGTH)
    per_file = max(1, _PART_BYTES // (row_bytes * batch)) * batch
    started = time.perf_counter()
    for number, part in enumerate(torch.split(rows, per_file)):
        path = out / f"tuned-{number}.h5"
        with h5py.File(path, "w") as file:
            _fill_file(model, part, batch, chosen, file)
        fsync(path)
        sha256_file(path)
    return time.perf_counter() - started


def _fill_file(model: Any, part: Tensor, batch: int, chosen: HookSet, file: h5py.File) -> None:
    names = set(chosen.hooks)
    with torch.no_grad(), _stopping(model, chosen.after):
        for number, tokens in enumerate(torch.split(part, batch)):
            cache = _catch_hooks(model, tokens, names)
            at = slice(number * batch, number * batch + len(tokens))
            for hook, values in cache.items():
                if hook not in file:
                    shape = (len(part), *values.shape[1:])
                    chunks = chunk_shape(shape, values.itemsize, batch)
                    file.create_dataset(hook, shape, "f4", chunks=chunks, fletcher32=True)
                file[hook][at] = values.numpy()


def _catch_hooks(model: Any, tokens: Tensor, names: set[str]) -> dict[str, Tensor]:
    """Return the activations that TransformerLens' caching hooks keep; layers after the last hook
    are not run."""
    cache: dict[str, Tensor] = {}

    def keep(values: Tensor, hook: Any, name: str) -> None:
        cache[name] = values.detach()

    def keeping(name: str) -> Callable[..., None]:
        return lambda values, hook: keep(values, hook, name)

    try:
        model.run_with_hooks(
            tokens, return_type=None, fwd_hooks=[(name, keeping(name)) for name in sorted(names)]
        )
    except _Stop:
        return cache
    return cache


_WAYS: dict[str, Callable[..., float]] = {
    "forward": _forward,
    "extract": _extract,
    "TransformerLens": _users_loop,
    "tuned": _run_tuned_loop,
}


def _turn(
    model: Any, rows: Tensor, batch: int, chosen: HookSet, ways: dict[str, Any]
) -> dict[str, float]:
    """Run each way once and return its rows per second."""
    rates: dict[str, float] = {}
    for name, way in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            rates[name] = len(rows) / way(model, rows, batch, chosen, Path(folder))
    return rates


def _compression_timer(name: str) -> Callable[..., float]:
    def way(model: Any, rows: Tensor, batch: int, chosen: HookSet, out: Path) -> float:
        started: list[float] = []
        extract(
            model,
            rows,
            chosen.hooks,
            out / "store",
            batch=batch,
            compression=name,
            report=lambda text: started.append(time.perf_counter()),
        )
        return time.perf_counter() - started[0]

    return way


def peak_memory(chosen: HookSet, rows: int, batch: int, threads: int, folder: Path) -> int:
    """Return the peak resident memory in bytes of a process that extracts ``rows`` rows (Linux)."""
    done = subprocess.run(  # noqa: S603
        [
            *(sys.executable, "-m", "analyses.benchmarks.extraction", "--peak-of", chosen.name),
            *("--rows", str(rows), "--batch", str(batch), "--threads", str(threads)),
            *("--model-folder", str(folder)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])


def _print_peak(chosen: HookSet, rows: int, batch: int, folder: Path) -> None:
    model = TransformerBridge.boot_transformers(str(folder), device="cpu").eval()
    with tempfile.TemporaryDirectory() as out:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of loading the model
        extract(model, _rows(rows), chosen.hooks, Path(out) / "store", batch=batch)
    status = Path("/proc/self/status").read_text()
    typer.echo(int(status.partition("VmHWM:")[2].split()[0]) * 1024)


def main(
    rows: Annotated[int, typer.Option(help="Rows of a turn.")] = 64,
    batch: Annotated[int, typer.Option(help="Rows of a forward pass.")] = 8,
    repeats: Annotated[int, typer.Option(help="Turns.")] = 3,
    threads: Annotated[int, typer.Option(help="PyTorch threads.")] = 2,
    memory_rows: Annotated[int, typer.Option(help="Rows of the smaller memory run.")] = 32,
    compression: Annotated[bool, typer.Option(help="Time the compressions too.")] = True,
    peak_of: Annotated[str | None, typer.Option(hidden=True)] = None,
    model_folder: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Print a table, and the ratios as JSON in the last line."""
    torch.set_num_threads(threads)
    if peak_of is not None and model_folder is not None:
        chosen = next(hooks for hooks in HOOK_SETS if hooks.name == peak_of)
        _print_peak(chosen, rows, batch, model_folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(Path(folder))
        ratios: dict[str, list[float]] = {"forward": [], "TransformerLens": [], "tuned": []}
        for chosen in HOOK_SETS:
            rates = _measure(model, _rows(rows), batch, chosen, repeats)
            for name, found in ratios.items():
                found.append(rates["extract"] / rates[name])
        if compression:
            _show_compressions(model, _rows(rows), batch, HOOK_SETS[0])
        del model
        growth = []
        for chosen in HOOK_SETS:
            few, many = (
                peak_memory(chosen, n, batch, threads, Path(folder))
                for n in (memory_rows, _GROWTH * memory_rows)
            )
            growth.append(many / few - 1)
            typer.echo(
                f"{chosen.name}: peak {few / 1e6:,.0f} MB with {memory_rows} rows, "
                f"{many / 1e6:,.0f} MB with {_GROWTH * memory_rows}"
            )
    result = {f"vs_{name.lower()}": round(min(found), 3) for name, found in ratios.items()}
    typer.echo(json.dumps({**result, "memory_growth": round(max(growth), 3)}))


def _measure(
    model: Any, rows: Tensor, batch: int, chosen: HookSet, repeats: int
) -> dict[str, float]:
    """Return the best rate of each way in rows per second, and print it."""
    _forward(model, rows[:batch], batch, chosen, Path())
    turns = [_turn(model, rows, batch, chosen, _WAYS) for _ in range(repeats)]
    best = {name: max(turn[name] for turn in turns) for name in _WAYS}
    typer.echo(
        f"{chosen.name}: {len(rows)} rows of {_LENGTH} tokens, batches of {batch}, "
        f"best of {repeats} turns"
    )
    for name, rate in best.items():
        slowest = min(turn[name] for turn in turns)
        share = rate / best["forward"]
        typer.echo(f"  {name:<16} {rate:7.1f} rows/s  (slowest {slowest:.1f})  {share:.2f}")
    return best


def _show_compressions(model: Any, rows: Tensor, batch: int, chosen: HookSet) -> None:
    ways = {name: _compression_timer(name) for name in ("lzf", "gzip")}
    rates = _turn(model, rows, batch, chosen, {"forward": _forward, **ways})
    typer.echo(f"{chosen.name}, compressed, one turn:")
    for name in ways:
        typer.echo(f"  {name:<16} {rates[name]:7.1f} rows/s  {rates[name] / rates['forward']:.2f}")
