"""Which role does each head, FFN and layer play? Behaviour and cause must agree."""

from probes.roles.decision import ROLE_COLUMNS
from probes.roles.find import answers_of, candidates, find_roles, memories_of
from probes.roles.memory import Floors, decide_roles

__all__ = [
    "ROLE_COLUMNS",
    "Floors",
    "answers_of",
    "candidates",
    "decide_roles",
    "find_roles",
    "memories_of",
]
