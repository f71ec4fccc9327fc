"""The environment that a result was computed in: versions, threads and BLAS, as every result
states.

Sums of floating-point numbers depend on all three: if they are equal, the same seed gives the same
bits; if one differs, results may differ by rounding. Libraries that are not loaded are not listed:
a result that was made without PyTorch does not depend on its threads.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from threadpoolctl import threadpool_info

ENVIRONMENT = "environment.json"
"""Name of the file in a folder of results that holds :func:`environment_json`."""

_PACKAGES = (
    "prooflens",
    "torch",
    "transformer-lens",
    "transformers",
    "numpy",
    "scipy",
    "scikit-learn",
    "pandas",
    "h5py",
)


def environment() -> dict[str, str]:
    """Return versions of Python and of the packages that results depend on, ``threads`` and
    ``blas``."""
    return {**_versions(), "threads": str(_threads()), "blas": ", ".join(_blas())}


def environment_json() -> str:
    """Return :func:`environment` as the text of a JSON file."""
    return json.dumps(environment(), indent=1) + "\n"


def installed_version(package: str) -> str:
    """Return the version of a package, or ``not installed``."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def _versions() -> dict[str, str]:
    found = {package: installed_version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), **found}


def _torch() -> Any:
    return sys.modules.get("torch")


def _threads() -> int:
    """Return the number of threads of PyTorch; if it is not loaded, of the loaded numerical
    libraries."""
    torch = _torch()
    if torch is not None:
        return int(torch.get_num_threads())
    return max((int(one["num_threads"]) for one in threadpool_info()), default=1)


def _blas() -> list[str]:
    """Return each loaded library that multiplies matrices, with the kind of processor that it
    uses."""
    found = {
        f"{one['internal_api']} {one['version']} ({one.get('architecture', platform.machine())})"
        for one in threadpool_info()
        if one["user_api"] == "blas"
    }
    if (torch := _torch()) is not None:
        built = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
        kind = torch.backends.cpu.get_cpu_capability()
        found.add(f"{built[1] if built else 'unknown'} of torch ({kind})")
    return sorted(found)
