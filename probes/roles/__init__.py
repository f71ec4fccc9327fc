"""Decide which role each head, FFN and layer plays; behaviour and cause must agree."""

from probes.roles.decision import ROLE_COLUMNS, Found, Test
from probes.roles.examined import Examined
from probes.roles.find import candidates, find_roles
from probes.roles.profile import LANGUAGE, PROFILES, TASK, Floors, Profile
from probes.roles.registry import ROLES, Role, RoleCase

__all__ = [
    "LANGUAGE",
    "PROFILES",
    "ROLES",
    "ROLE_COLUMNS",
    "TASK",
    "Examined",
    "Floors",
    "Found",
    "Profile",
    "Role",
    "RoleCase",
    "Test",
    "candidates",
    "find_roles",
]
