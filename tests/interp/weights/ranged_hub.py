"""A hub on this machine: repositories of folders, ranged requests, and a count of what is sent."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest


class Hub:
    """What is on the hub, and what was asked of it.

    Attributes:
        folders: (repository, revision) → folder of its files.
        sent: (path, bytes of its body) of every answer to a GET, in order.
        ranges: whether the server knows them.
        cut: bytes that are left out at the end of every range.
    """

    def __init__(self) -> None:
        self.folders: dict[tuple[str, str], Path] = {}
        self.sent: list[tuple[str, int]] = []
        self.ranges, self.cut = True, 0
        self.url = ""

    def bytes_sent(self, ending: str = "") -> int:
        """Bytes of all bodies of paths that end so."""
        return sum(n for path, n in self.sent if path.endswith(ending))

    def find(self, path: str) -> tuple[Path | None, str, str]:
        """The file of ``/me/model/resolve/REVISION/FILE``, its commit, and what is missing."""
        one, two, _, revision, file = unquote(path).strip("/").split("/", 4)
        folders = {
            told: folder
            for (repository, name), folder in self.folders.items()
            if repository == f"{one}/{two}"
            for told in (name, commit_of(name))
        }
        if not folders:
            return None, "", "RepoNotFound"
        if revision not in folders:
            return None, "", "RevisionNotFound"
        found = folders[revision] / file
        commit = revision if len(revision) == 40 else commit_of(revision)
        return (found if found.is_file() else None), commit, "EntryNotFound"


def commit_of(revision: str) -> str:
    return hashlib.sha1(revision.encode(), usedforsecurity=False).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            if self.path.count("/") < 4:
                self.reply(200, b"", {}, body=False)
                return
            file, commit, lacking = hub.find(self.path)
            if file is None:
                self.reply(404, b"", {"X-Error-Code": lacking}, body=body)
                return
            data = file.read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit}
            asked = self.headers.get("Range")
            if asked and hub.ranges:
                first, last = map(int, asked.removeprefix("bytes=").split("-"))
                last = min(last, len(data) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
                self.reply(206, data[first : last + 1 - hub.cut], headers, body=body)
            else:
                self.reply(200, data, headers, body=body)

        def reply(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                hub.sent.append((self.path, len(data)))
                self.wfile.write(data)

    return Handler


@contextmanager
def local_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
    """The hub's client speaks to a server here, and caches in a folder of its own."""
    from huggingface_hub import constants

    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
