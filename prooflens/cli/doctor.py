"""``prooflens doctor``: what is installed, on what machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import typer

from interp.environment import environment
from prooflens.cli.usage import facts

__all__ = ["doctor"]

_EXTRAS = {"ray": "many machines", "hdf5plugin": "compression", "anywidget": "notebooks"}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plugins() -> list[dict[str, str]]:
    """What installed packages add, each with the reason if it is left out."""
    import warnings

    from interp.plugins import PluginWarning, plugins
    from interp.tasks.catalogue import KINDS
    from interp.weights.head_weights import ARCHITECTURES
    from probes.head_scores import SCORES
    from probes.roles import ROLES

    found = plugins()
    if not found:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        problems = {one.group: one.problems for one in (KINDS, ROLES, SCORES, ARCHITECTURES)}
    return [{**vars(one), "problem": problems[one.group].get(one.name, "")} for one in found]


def doctor() -> None:
    """Print versions, device, threads, which optional extras are there, and plug-ins."""
    import torch

    rows = list(environment().items())
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    rows.append(("device", f"cuda ({gpu})" if gpu else "cpu"))
    for name, purpose in _EXTRAS.items():
        found = _installed(name)
        rows.append((f"{name} (optional, {purpose})", found or "not installed"))
    added = _plugins()
    facts(installed={name.partition(" (")[0]: value for name, value in rows}, plugins=added)
    for one in added:
        left_out = f"{one['package']}, left out: {one['problem']}"
        said = left_out if one["problem"] else one["package"]
        rows.append((f"{one['group']} {one['name']}", said))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
