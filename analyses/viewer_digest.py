"""Which sources a page's script was built from: their digest stands in its first line.

    python -m analyses.viewer_digest      writes it there; the last step of ``make viewer``

So a test can tell, without Node, that the script in the package is the one its sources make.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "prooflens" / "pages" / "viewer"


def source_digest() -> str:
    """SHA-256 of everything that the script is built from."""
    found = hashlib.sha256()
    for path in [FOLDER / "package.json", *sorted((FOLDER / "src").glob("*.ts"))]:
        found.update(f"{path.name}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def stamp() -> None:
    """Write the digest into the first line of the script that was built."""
    script = FOLDER / "viewer.js"
    built = script.read_text(encoding="utf-8")
    script.write_text(f"/* sources {source_digest()} */\n{built}", encoding="utf-8")


if __name__ == "__main__":
    stamp()
