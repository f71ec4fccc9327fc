"""``python -m analyses``: what the laboratory runs, from a checkout."""

from __future__ import annotations

from analyses.cli import benchmark, claims, fits, pictures, train_language
from prooflens.commands import App, run_app

__all__ = ["app"]

_NAME = "python -m analyses"

app = App(
    name=_NAME,
    help="The laboratory of prooflens: claims of the papers, benchmarks, experiments, pictures.",
    example=f"{_NAME} claims run depth-frontier --profile zoo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(claims.app, name="claims")
app.add_typer(fits.app, name="fits")
app.command("benchmark", example=f"{_NAME} benchmark size", **benchmark.SETTINGS)(
    benchmark.benchmark
)
app.command("pictures", example=f"{_NAME} pictures")(pictures.pictures)
app.command("real-heads", example=f"{_NAME} real-heads out/smollm2-135m")(pictures.real_heads)
app.command("train-language", example=f"{_NAME} train-language --out out/code-lm")(
    train_language.train_language
)

if __name__ == "__main__":
    run_app(app, _NAME)
