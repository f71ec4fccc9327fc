"""An inspection of a language model, which several files look at."""

import textwrap
from pathlib import Path

import pytest

from prooflens.inspection import Inspected, inspect


@pytest.fixture(scope="session")
def language() -> Inspected:
    """A trained language model on a text, with a prompt."""
    text = Path(textwrap.__file__).read_text()
    return inspect("code-lm", count=16, text=text, prompts=["for i in range(3):"])
