"""The viewer of an inspection as a widget of a notebook, through anywidget (an optional extra)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import anywidget
import pandas as pd
import traitlets

from prooflens.pages.inspection import viewer_file
from prooflens.pages.viewer_data import head_bytes, viewer_document


class HeadsWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """The page's viewer as a widget in a notebook.

    Attributes:
        document: The page's data as JSON.
        codes: ``MODEL-HEAD`` → the head's bytes.
        findings: The findings in sentences, shown above everything else.
        head: The name of the head that is shown; Python and the page share it.
    """

    _esm = viewer_file("viewer.js")
    _css = viewer_file("viewer.css")
    document = traitlets.Unicode().tag(sync=True)
    codes = traitlets.Dict().tag(sync=True)
    findings = traitlets.List(traitlets.Unicode()).tag(sync=True)
    head = traitlets.Unicode().tag(sync=True)


def heads_widget(
    tables: Mapping[str, pd.DataFrame], about: Mapping[str, Any], findings: Sequence[str], head: str
) -> Any:
    """Return the viewer of an inspection as a widget for a notebook.

    Args:
        tables: The inspection's tables, by name.
        about: The facts about the inspection, as in ``inspection.json``.
        findings: The sentences above the heads.
        head: The head that is shown first, such as ``L1H0``; ``""`` for the first of the table.
    """
    codes = {f"0-{name}": data for name, data in head_bytes(tables)}
    document = viewer_document(tables, about, "heads")
    data = json.dumps(document, ensure_ascii=False, allow_nan=False)
    return HeadsWidget(document=data, codes=codes, findings=list(findings), head=head)
