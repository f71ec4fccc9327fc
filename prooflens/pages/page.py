"""A report as data: a page of sections with words, figures and tables, rendered as one HTML file.

Figures are embedded, styles are in the file, and nothing is fetched, so the file opens anywhere.
All words are escaped, so that the name of a model or task cannot become markup.

*How a page names its model.* A shipped model or one of the hub keeps its name. A folder is named by
the end of its path; the whole path is in the small print.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from interp.environment import environment as now
from trained.shipped_names import languages, names


@dataclass(frozen=True)
class Picture:
    """A PNG file with a caption, which also begins its alternative text.

    Attributes:
        path: The file.
        caption: What the picture shows, with its numbers.
        anchor: The anchor to which a :class:`Link` leads; empty for none.
        narrow: A file with the same panels below one another, shown on narrow screens.
        told: The numbers in the figure in words, for readers who cannot see it.
    """

    path: Path
    caption: str
    anchor: str = ""
    narrow: Path | None = None
    told: str = ""

    @property
    def alternative(self) -> str:
        """The text for readers who cannot see the figure."""
        return f"{self.caption} {self.told}".strip()

    @property
    def data(self) -> str:
        """The file as a data URL."""
        return _data(self.path)

    @property
    def narrow_data(self) -> str:
        """The file for a narrow screen as a data URL; empty without one."""
        return "" if self.narrow is None else _data(self.narrow)

    @property
    def width(self) -> int:
        """The width at which the picture is shown, in CSS pixels."""
        return self._size()[0]

    @property
    def height(self) -> int:
        """The shown height in CSS pixels."""
        return self._size()[1]

    def _size(self) -> tuple[int, int]:
        with self.path.open("rb") as stream:
            width, height = struct.unpack(">16x2I", stream.read(24))
        return math.ceil(width * _SHOWN), math.ceil(height * _SHOWN)


def _data(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


_SHOWN = 0.66
"""Factor from the pixels of a figure to its size on the page. Figures are saved at 150 dots per
inch."""
_LEAST = 1e-10
"""A p or q below this is shown as "< 1e-10": so far out, the null cannot tell probabilities
apart."""
_SHORT = 24
"""Number of characters up to which a table cell is kept on one line."""


@dataclass(frozen=True)
class Link:
    """A cell of a table that leads to a picture, or to a row of a table, on the same page."""

    text: str
    anchor: str

    def __str__(self) -> str:
        return self.text


class Cell(NamedTuple):
    """A table cell as it is shown: the class of its style, its text, and the anchor to which it
    leads."""

    kind: str
    text: str
    anchor: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table with a caption; numbers are shown to three significant digits.

    Attributes:
        frame: The rows; a cell may be a :class:`Link`.
        caption: The text above the table.
        sortable: Whether headings are buttons that sort by their column, by the unrounded numbers.
        anchors: The anchor of each row, to which links lead; empty for none.
    """

    frame: pd.DataFrame
    caption: str
    sortable: bool = False
    anchors: Sequence[str] = ()

    @property
    def columns(self) -> list[str]:
        """The headings of the columns."""
        return [str(name).replace("_", " ") for name in self.frame.columns]

    @property
    def rows(self) -> list[list[Cell]]:
        """The cells of each row."""
        records = self.frame.itertuples(index=False, name=None)
        names = [str(name) for name in self.frame.columns]
        return [
            [_cell(value, name) for value, name in zip(record, names, strict=True)]
            for record in records
        ]

    @property
    def keys(self) -> list[list[str]]:
        """For each cell, the text by which a column is sorted."""
        records = self.frame.itertuples(index=False, name=None)
        return [[_key(value) for value in record] for record in records]


@dataclass(frozen=True)
class Section:
    """A heading with the words, pictures and tables under it, in this order.

    Attributes:
        title: The heading.
        words: Paragraphs.
        pictures: Figures with captions.
        tables: Tables with captions.
        folded: Whether the section is closed until the reader opens it, as for details that back up
            a finding.
        html: Trusted HTML that is shown after the words.
    """

    title: str
    words: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[PageTable] = ()
    folded: bool = False
    html: str | Markup = ""


@dataclass(frozen=True)
class Page:
    """The contents of a report.

    Attributes:
        title: The title at the top.
        findings: The results in full sentences, shown first.
        sections: The evidence; sections with details may be folded.
        facts: Versions, seeds and settings, in small print at the end.
        picture: The main figure, shown below the findings.
        doubts: The limitations of the results, in sentences.
        environment: Package versions with which the numbers were made; by default the installed
            ones.
    """

    title: str
    findings: Sequence[str]
    sections: Sequence[Section]
    facts: Sequence[str] = field(default_factory=tuple)
    picture: Picture | None = None
    doubts: Sequence[str] = ()
    environment: Mapping[str, str] | None = None

    @property
    def sortable(self) -> bool:
        """Whether the page needs a script: to sort a table, or to open a folded section when a link
        leads to it."""
        tables = (table for section in self.sections for table in section.tables)
        return any(section.folded for section in self.sections) or any(t.sortable for t in tables)


def render(page: Page) -> str:
    """Render the page as HTML."""
    return render_page(
        "page.html.j2",
        scripted=page.sortable,
        environment=page.environment,
        title=page.title,
        findings=page.findings,
        picture=page.picture,
        doubts=page.doubts,
        sections=page.sections,
        facts=page.facts,
    )


def _key(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return ""
    return repr(float(value)) if isinstance(value, int | float) else str(value)


def _cell(value: Any, name: str) -> Cell:
    if isinstance(value, bool):
        return Cell("yes", "yes") if value else Cell("no", "no")
    if name in ("p", "q") and isinstance(value, float) and value < _LEAST:
        return Cell("number", f"< {_LEAST:.0e}")
    if isinstance(value, float):
        return Cell("number", "" if math.isnan(value) else _number(value))
    if isinstance(value, int):
        return Cell("number", str(value))
    kind = "short" if len(str(value)) <= _SHORT else "long"
    return Cell(kind, str(value), value.anchor if isinstance(value, Link) else "")


def _number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.1e}"


def render_page(
    template: str | Traversable,
    *,
    scripted: bool,
    environment: Mapping[str, str] | None = None,
    **values: Any,
) -> str:
    """Render a template as HTML; all text values are escaped.

    Args:
        template: The name of a template in this folder; or a template elsewhere, as a file, which
            may extend and import those of this folder.
        scripted: Whether the page has tables to sort or filter, and so needs a script.
        environment: The package versions in the footer; the installed ones by default.
        values: The variables of the template: ``title``, ``facts`` and its own.
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
    """Return the environment of the templates, which are compiled once per process."""
    return Environment(
        loader=PackageLoader("prooflens", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


_STORE = "store"
"""Name of the folder in which commands keep a store. It is the same everywhere, so that a page also
shows the name of the folder around it."""


def page_name(name: str) -> str:
    """Return the name that a page shows for a model or a store.

    An absolute path or an existing folder is shortened to its last part, or to its last two if the
    last is ``store``; all other names, such as those of shipped models, are kept.
    """
    place = Path(name)
    if name in (*names(), *languages()) or not (place.is_absolute() or place.is_dir()):
        return name
    parts = place.resolve().parts
    return "/".join(parts[-2:] if parts[-1] == _STORE else parts[-1:])
