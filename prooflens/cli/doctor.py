"""``prooflens doctor``: what is installed, on what machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import typer

from interp.environment import environment
from prooflens.cli.usage import facts

_OPTIONAL = ("ray", "hdf5plugin", "anywidget")


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def doctor() -> None:
    """Print versions, threads and device."""
    import torch

    rows = environment() | {package: _installed(package) for package in _OPTIONAL}
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    rows["device"] = f"cuda ({gpu})" if gpu else "cpu"
    facts(installed=rows)
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        typer.echo(f"{name:<{width}}  {value}")
