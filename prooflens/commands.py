"""User-defined commands that behave like those of ``prooflens``: ``--json``, refusals in one line.

app = App(help="…")

@app.command("count", example="python -m mine count")
def count() -> None:
    facts(found=3)

run_app(app, "python -m mine")
"""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
