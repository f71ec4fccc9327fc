"""Write a benchmark's numbers as one line of JSON, printed and, if asked, in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prooflens.files import json_data, output_file
from prooflens.machine import environment

__all__ = ["write_result"]


def write_result(found: Mapping[str, Any], out: Path | None) -> None:
    """Print a benchmark's numbers as one line of JSON, and write the line to a file if one is
    given. Numbers that are not finite become null.

    Raises:
        OutputError: if the file cannot be written.
    """
    data = json_data({**found, "environment": environment()})
    text = json.dumps(data, allow_nan=False) + "\n"
    sys.stdout.write(text)
    if out is not None:
        with output_file(out, overwrite=True) as draft:
            draft.write_text(text)
