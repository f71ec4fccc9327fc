"""The view of heads as a widget of a notebook, through anywidget (an optional extra)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anywidget
import traitlets

from probes.roles.profile import Profile
from probes.viewing.model import Viewed
from prooflens.pages.view import view_findings, viewer_file
from prooflens.pages.view_document import document, head_bytes


class HeadsWidget(anywidget.AnyWidget):  # type: ignore[misc]
    """The page's viewer in a notebook.

    Attributes:
        document: The page's data as JSON.
        codes: ``MODEL-HEAD`` → the head's bytes.
        findings: What was found, in sentences, above everything else.
        head: The head that is looked at; Python and the page share it.
    """

    _esm = viewer_file("viewer.js")
    _css = viewer_file("viewer.css")
    document = traitlets.Unicode().tag(sync=True)
    codes = traitlets.Dict().tag(sync=True)
    findings = traitlets.List(traitlets.Unicode()).tag(sync=True)
    head = traitlets.Unicode().tag(sync=True)


def heads_widget(views: Sequence[Viewed], profile: Profile, head: str = "") -> Any:
    """A widget of some models' heads, whose roles the profile decided, that opens with a head."""
    codes = {
        f"{number}-L{layer}H{at}": head_bytes(viewed, (layer, at))
        for number, viewed in enumerate(views)
        for layer, at in viewed.heads
    }
    data = json.dumps(document(views, "heads", profile), ensure_ascii=False, allow_nan=False)
    findings = view_findings(views, profile)
    return HeadsWidget(document=data, codes=codes, findings=findings, head=head)
