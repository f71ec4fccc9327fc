"""Commands of one's own that behave as those of ``prooflens``: ``--json``, refusals in one line.

app = App(help="…")

@app.command("count", example="python -m mine count")
def count() -> None:
    facts(found=3)

run_app(app, "python -m mine")
"""

from interp.ray_tasks import Backend
from prooflens.cli.main import command_names
from prooflens.cli.running import run_app
from prooflens.cli.steps import progress
from prooflens.cli.usage import App, Device, facts

__all__ = ["App", "Backend", "Device", "command_names", "facts", "progress", "run_app"]
