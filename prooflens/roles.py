"""Roles: which there are, on what rows they are judged, and what decides."""

from probes.roles import (
    LANGUAGE,
    PROFILES,
    ROLE_COLUMNS,
    ROLES,
    TASK,
    Examined,
    Explanation,
    Floors,
    Found,
    Lacking,
    Profile,
    Role,
    RoleCase,
    Surrogate,
    Test,
    candidates,
    explain,
    find_roles,
)
from probes.roles.decision import no_roles
from probes.roles.gathering import evidence_of
from probes.roles.shipped import SHIPPED
from probes.roles.surrogates import Fitting, fitted
from probes.roles.trials import Trial, rows_of, token_trials
from probes.roles.views import repeated_rows

__all__ = [
    "LANGUAGE",
    "PROFILES",
    "ROLES",
    "ROLE_COLUMNS",
    "SHIPPED",
    "TASK",
    "Examined",
    "Explanation",
    "Fitting",
    "Floors",
    "Found",
    "Lacking",
    "Profile",
    "Role",
    "RoleCase",
    "Surrogate",
    "Test",
    "Trial",
    "candidates",
    "evidence_of",
    "explain",
    "find_roles",
    "fitted",
    "no_roles",
    "repeated_rows",
    "rows_of",
    "token_trials",
]
