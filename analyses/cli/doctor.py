"""``prooflens doctor``: what is installed, on what machine."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import typer

from analyses.cli.usage import facts

__all__ = ["doctor"]

_NEEDED = ("prooflens", "torch", "transformer-lens", "transformers", "h5py", "scikit-learn")
_EXTRAS = {"ray": "many machines", "hdf5plugin": "compression", "anywidget": "notebooks"}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def doctor() -> None:
    """Print versions, device, threads and which optional extras are there."""
    import torch

    rows = [("python", platform.python_version())]
    rows += [(name, _installed(name) or "missing") for name in _NEEDED]
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    rows += [
        ("device", f"cuda ({gpu})" if gpu else "cpu"),
        ("threads", str(torch.get_num_threads())),
    ]
    for name, purpose in _EXTRAS.items():
        found = _installed(name)
        rows.append((f"{name} (optional, {purpose})", found or "not installed"))
    facts(installed={name.partition(" (")[0]: value for name, value in rows})
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
