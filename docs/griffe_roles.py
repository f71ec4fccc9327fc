"""Cross-references as docstrings write them (``:class:`~a.b.C```) become code for Markdown."""

import re
from typing import Any

from griffe import Extension, Object

__all__ = ["Roles"]

_ROLE = re.compile(r":[a-z]+:`~?(?P<path>[^`<]+)`")


class Roles(Extension):
    """Rewrites every docstring once its object is there."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """``:class:`~a.b.C``` → ``C``, ``:mod:`a.b``` → ``a.b``."""
        if obj.docstring:
            obj.docstring.value = _ROLE.sub(_plain, obj.docstring.value)


def _plain(role: re.Match[str]) -> str:
    path = role["path"]
    short = "~" in role[0]
    return f"`{path.rsplit('.', 1)[-1] if short else path}`"
