"""Makes the search of the built pages work where they are opened as files, without a server.

MkDocs' search starts a worker, which reads the index by a request; for pages of ``file://`` a
browser allows neither. After the build this writes the index as a script too, and puts in front of
MkDocs' own way another one for such pages (``offline_search.js``). On a server nothing changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

__all__ = ["on_post_build"]

_SCRIPT = Path(__file__).with_name("offline_search.js")
_OTHERWISE = "\nif (!window.Worker) {"


def on_post_build(config: Any, **_: Any) -> None:
    """Add the offline way to the search's script, which must be as it is known here.

    Raises:
        PluginError: if MkDocs' script is another one.
    """
    folder = Path(config["site_dir"]) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"searchWorker.start({index});\n", encoding="utf-8")
    main = (folder / "main.js").read_text(encoding="utf-8")
    if main.count(_OTHERWISE) != 1:
        raise PluginError("MkDocs' search/main.js has changed: look at docs/offline_search.py")
    offline = "".join(f"  {line}\n" for line in _SCRIPT.read_text(encoding="utf-8").splitlines())
    guarded = f'\nif (location.protocol === "file:") {{\n{offline}}} else {_OTHERWISE.strip()}'
    (folder / "main.js").write_text(main.replace(_OTHERWISE, guarded), encoding="utf-8")
