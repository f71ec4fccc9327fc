"""A page of heads: one self-contained HTML file that nothing has to be fetched for.

The page is a document of data (:mod:`prooflens.pages.view_document`), the heads' bytes, and a
script that draws them (``viewer/``, built ahead of time by ``make viewer``). Findings and the table
of all heads are HTML that is there without the script, for screen readers and for exports.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import pandas as pd
from markupsafe import Markup

from probes.roles.profile import LANGUAGE, Profile
from probes.roles.registry import ROLES
from probes.viewing.model import Viewed, quantisation_error
from prooflens.pages.certainty import certainty
from prooflens.pages.circuit import circuit_doubts, circuit_sentences
from prooflens.pages.findings import STATUS_WORDS, in_words, role_findings, status_counts
from prooflens.pages.page import Table, rendered
from prooflens.pages.view_document import document, head_bytes

__all__ = ["head_table", "view_doubts", "view_findings", "view_page", "viewer_file"]

_UNITS = {"nats": "loss", "variance": "output changes by"}


def view_page(views: Sequence[Viewed], profile: Profile) -> str:
    """The page as HTML.

    Args:
        views: Models on the same rows, side by side; one or a few.
        profile: Their roles were decided by.
    """
    title = "Heads of " + in_words([viewed.name for viewed in views])
    data = json.dumps(document(views, title, profile), ensure_ascii=False, allow_nan=False)
    return rendered(
        "view.html.j2",
        scripted=True,
        title=title,
        findings=view_findings(views, profile),
        roles=_every_role(views, profile) if profile == LANGUAGE else [],
        doubts=view_doubts(views, profile),
        tables=[head_table(viewed) for viewed in views],
        data=_safe(data),
        blobs=list(_blobs(views)),
        viewer_css=_asset("viewer.css"),
        viewer_js=_asset("viewer.js"),
        facts=[f"{viewed.name}: {viewed.source}" for viewed in views if viewed.source],
    )


def viewer_file(name: str) -> str:
    """One of the viewer's own files, ``viewer.js`` or ``viewer.css``."""
    return (files("prooflens.pages") / "viewer" / name).read_text(encoding="utf-8")


def _asset(name: str) -> Markup:
    return Markup(viewer_file(name))  # noqa: S704  our own file


def _safe(text: str) -> Markup:
    """JSON inside a script: nothing in it can end the script."""
    escaped = text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Markup(escaped)  # noqa: S704  no markup is left in it


def _blobs(views: Sequence[Viewed]) -> Iterator[tuple[str, str]]:
    for number, viewed in enumerate(views):
        for layer, head in viewed.heads:
            codes = base64.b64encode(head_bytes(viewed, (layer, head))).decode()
            yield f"{number}-L{layer}H{head}", codes


def view_findings(views: Sequence[Viewed], profile: Profile) -> list[str]:
    """What the heads do: of language models the induction circuit and what else is confirmed, of
    a task's a sentence a role; and how sure that is. Of several models each with its name."""
    told = _circuits if profile == LANGUAGE else _roles
    return [
        f"{viewed.name}: {said}" if len(views) > 1 else said
        for viewed in views
        for said in (*told(viewed, profile), certainty(viewed.roles, profile.level))
    ]


def _circuits(viewed: Viewed, profile: Profile) -> list[str]:
    return circuit_sentences(viewed.roles, _induction(viewed), profile=profile)


def _roles(viewed: Viewed, profile: Profile) -> list[str]:
    asked = [role.name for role in ROLES.values() if profile.name in role.profiles]
    return role_findings(viewed.roles, asked, effect=_UNITS[profile.unit])


def _induction(viewed: Viewed) -> pd.Series | None:
    """The share of every head's attention that goes to what followed equal tokens."""
    found = [column for column in viewed.columns if column.key == "after_same"]
    if not found:
        return None
    return pd.Series({f"L{layer}H{head}": v for (layer, head), v in found[0].values.items()})


def _every_role(views: Sequence[Viewed], profile: Profile) -> list[str]:
    return [
        f"{viewed.name}: {said}" if len(views) > 1 else said
        for viewed in views
        for said in _roles(viewed, profile)
    ]


def view_doubts(views: Sequence[Viewed], profile: Profile) -> list[str]:
    """What would have to be doubted, with numbers, and what the numbers are."""
    said = []
    for viewed in views:
        told = circuit_doubts(viewed.roles) if profile == LANGUAGE else []
        said += [f"{viewed.name}: {doubt}" for doubt in told]
        counted = status_counts(viewed.roles)
        said.append(f"{viewed.name}: of the roles of {len(viewed.heads)} heads {counted}.")
        rows = ", ".join(f"{len(s.batch)} {s.kind}" for s in viewed.shown)
        said.append(
            f"{viewed.name}: shown are {rows} rows; their attention is kept in a byte a number and "
            f"is off by {quantisation_error(viewed):.2g} at most. Every other number is exact."
        )
        said += [f"{viewed.name}: {note}" for note in viewed.notes]
        said += [f"{viewed.name}, {role}: {why}" for role, why in viewed.lacks.items()]
    chance = {"language": "random tokens", "task": "rows of the task"}[profile.name]
    said.append(
        f"Roles are decided on {chance} at a false-discovery rate of {profile.level:g}, not on the "
        "rows that are shown. A head whose work another takes over has no effect alone. "
        f"{STATUS_WORDS}"
    )
    return said


def head_table(viewed: Viewed) -> Table:
    """All heads with their roles and numbers."""
    lines: list[dict[str, Any]] = []
    for layer, head in viewed.heads:
        own = viewed.roles[(viewed.roles["layer"] == layer) & (viewed.roles["head"] == head)]
        told = own[["role", "target", "status"]].itertuples(index=False, name=None)
        roles = [f"{role}{' of ' * bool(of)}{of} ({status})" for role, of, status in told]
        numbers = {c.label: c.values.get((layer, head), float("nan")) for c in viewed.columns}
        lines.append({"head": f"L{layer}H{head}", "roles": "; ".join(roles), **numbers})
    caption = f"All {len(lines)} heads of {viewed.name} as a table"
    return Table(pd.DataFrame(lines), caption, sortable=True)
