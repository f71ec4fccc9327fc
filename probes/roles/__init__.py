"""Decide which role each head, FFN and layer plays; behaviour and cause must agree."""

from probes.roles.decision import ROLE_COLUMNS
from probes.roles.find import candidates, find_roles
from probes.roles.profile import LANGUAGE, PROFILES, TASK, Floors, Profile
from probes.roles.registry import ROLES, Role

__all__ = [
    "LANGUAGE",
    "PROFILES",
    "ROLES",
    "ROLE_COLUMNS",
    "TASK",
    "Floors",
    "Profile",
    "Role",
    "candidates",
    "find_roles",
]
