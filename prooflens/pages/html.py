"""Render a template as one HTML file with styles and scripts inside."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from interp.environment import environment as now

__all__ = ["rendered"]


def rendered(
    template: str | Traversable,
    *,
    scripted: bool,
    environment: Mapping[str, str] | None = None,
    **values: Any,
) -> str:
    """Render a template as HTML; whatever is given as text is escaped.

    Args:
        template: The name of a template in this folder; or a template elsewhere, as a file, which
            may extend and import those of this folder.
        scripted: Whether the page has tables to sort or filter, and so a script.
        environment: The versions in the footer; those of now by default.
        values: What the template names: ``title``, ``facts`` and its own.
    """
    here = files("prooflens.pages")
    ours = {
        "css": Markup((here / "style.css").read_text()),  # noqa: S704  our own file
        "script": Markup((here / "tables.js").read_text()),  # noqa: S704  our own file
        "environment": now() if environment is None else environment,
    }
    known = _environment()
    if isinstance(template, str):
        found = known.get_template(template)
    else:
        found = known.from_string(template.read_text(encoding="utf-8"))
    page = found.render(scripted=scripted, **ours, **values)
    return page.encode("utf-8", "backslashreplace").decode()  # names of files need not be UTF-8


@cache
def _environment() -> Environment:
    """Templates are compiled once a process."""
    return Environment(
        loader=PackageLoader("prooflens", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
