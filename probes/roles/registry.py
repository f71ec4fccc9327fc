"""Every role, once: what it means, what is asked of a component for it, and where that is from.

A role's *behaviours* must all hold for a row of a role table, and its *causes* for a row that is
``confirmed`` (:mod:`probes.roles.decision`). A new role is an entry of
:mod:`probes.roles.shipped` and a detector that gives its tests (:mod:`probes.roles.detectors`); an
installed package adds one under the entry points ``prooflens.roles`` (:mod:`interp.plugins`).
"""

from __future__ import annotations

from dataclasses import fields

from interp.errors import Problems
from interp.plugins import Registry
from probes.roles.profile import PROFILES, Floors
from probes.roles.role import CONTROLS, Role, RoleCase
from probes.roles.shipped import SHIPPED

__all__ = ["ROLES", "Role", "RoleCase", "markdown"]


def _problem(name: str, role: object) -> str:
    """Why a role of an installed package cannot be looked for, or ``""``."""
    if not isinstance(role, Role):
        return f"it must be a Role (pl.roles.Role), got {type(role).__name__}"
    floors = {field.name for field in fields(Floors)}
    problems = Problems("role")
    problems.need(role.name == name, "name", "must be that of the entry point", role.name, "rename")
    other = sorted(set(role.profiles) - set(PROFILES))
    problems.need(not other, "profiles", f"must be of {', '.join(PROFILES)}", other, "pick some")
    other = sorted(set(role.floors) - floors)
    problems.need(not other, "floors", f"must be of {', '.join(sorted(floors))}", other, "pick")
    rule = f"must be of {', '.join(CONTROLS)}, or empty"
    problems.need(role.control in ("", *CONTROLS), "control", rule, role.control, "choose one")
    problems.need(bool(role.detectors), "detectors", "must name one", role.detectors, "add it")
    return "; ".join(problems.found)


ROLES: Registry[Role] = Registry({role.name: role for role in SHIPPED}, "prooflens.roles", _problem)
"""The name of each role → the role: the shipped ones, then those of installed packages."""


def markdown() -> str:
    """The shipped roles as a Markdown table for the documentation."""
    lines = ["| role | what it is | behaviour | cause | specific | `strength` | profiles | from |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for role in SHIPPED:
        cells = (
            role.name,
            role.sentence,
            "; ".join(role.behaviours),
            "; ".join(role.causes),
            CONTROLS[role.control] if role.control else f"no controls: {role.uncontrolled}",
            role.strength,
            ", ".join(role.profiles),
            role.source,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
