"""``prooflens certify``: what holds for every input, proved from the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from prooflens.cli.outputs import CertifyOutput, StrategyOutput
from prooflens.cli.steps import progress
from prooflens.cli.usage import facts, not_for, shipped_models

_NOT_CHECKED = ("what was measured", "costs", "parts of the bounds")
"""Parts of a certificate that the checker does not check, as they are named to the user. Strategies
whose bound is vacuous are not checked either."""


def certify(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A shipped model, or a checkpoint's folder.", autocompletion=shipped_models
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of certificate and page.")] = None,
    task: Annotated[
        str, typer.Option(help="KIND or KIND:ARGUMENT=VALUE,…; the model's own by default.")
    ] = "own",
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="brute-force, mechanism, black-box; of the maximum also cubic. "
            "Repeat for more. [default: all that do not take long]"
        ),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Longest row. [default: the task's]")] = None,
    box: Annotated[float, typer.Option(help="Largest size of a real input.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows and the search.")] = 0,
    check: Annotated[
        Path | None, typer.Option(help="Verify this certificate of MODEL again, prove nothing.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
) -> None:
    """Bound a model's error or accuracy over all inputs of its task, from its weights.

    Bounds are computed in float64 on the CPU and speak of the weights as they are stored: there is
    no device or precision to choose.
    """
    from interp.errors import need
    from interp.output import check_output
    from prooflens.cli.loading import load_with_task

    if check is not None:
        lost = ("out", "task", "strategy", "length", "box", "seed", "overwrite")
        not_for("--check", "which proves nothing", *lost)
        _check(check, model)
        return
    need("certify", model is not None, "MODEL", "must be given", None, "see 'prooflens models'")
    if out is not None:
        check_output(out, overwrite=overwrite, marker="certificate.json", inputs=[str(model)])
    from probes.certify.run import certify as prove

    built, chosen = load_with_task(str(model), task)
    found = prove(
        built,
        chosen,
        name=str(model),
        strategies=None if not strategy else [s.replace("-", " ") for s in strategy],
        length=length,
        box=box,
        seed=seed,
        watch=progress("proving"),
    )
    _tell(found)
    if out is not None:
        from prooflens.pages.certify import write_theorem

        write_theorem(found, out, overwrite=overwrite, analysed=built.card.analysed)
        typer.echo(f"certificate, page and check_certificate.py written to {out}")


def _tell(found: Any) -> None:
    """Print the theorem in words, then one line per strategy."""
    side = "the error is at most" if found.kind == "error" else "the accuracy is at least"
    best, seen = found.best, f"{found.measured:.6g} on {found.measured_on}"
    typer.echo(f"{found.statement}: {side} {found.safe(best):.6g} ({best.strategy}; seen {seen})")
    told = CertifyOutput(
        kind=found.kind,
        statement=found.statement,
        measured=found.measured,
        bound=found.safe(best),
        strategy=best.strategy,
        skipped=found.skipped,
        proofs=[_strategy_output(found, proof) for proof in found.proofs],
    )
    facts(**told)
    for proof in found.proofs:
        words = f"vacuous: {proof.vacuous}" if proof.vacuous else f"holds in {proof.arithmetic}"
        typer.echo(
            f"{proof.strategy:12} {found.safe(proof):<12.6g} {proof.cells} cells, "
            f"{proof.multiplications:.3g} multiplications, {proof.seconds:.2f} s; {words}"
        )
        for lemma in proof.lemmas:
            typer.echo(f"    {lemma.component}: {lemma.statement}: {lemma.number:.4g}")
    for name, reason in found.skipped.items():
        typer.echo(f"{name:12} not tried: {reason}")


def _strategy_output(found: Any, proof: Any) -> StrategyOutput:
    return StrategyOutput(
        strategy=proof.strategy,
        bound=found.safe(proof),
        multiplications=proof.multiplications,
        seconds=proof.seconds,
        vacuous=proof.vacuous or None,
    )


def _check(file: Path, model: str | None) -> None:
    from interp.bounds.network import not_covered
    from interp.errors import CheckpointError
    from probes.certify.certificate import read_certificate, sha256_of
    from probes.certify.check import check
    from probes.certify.run import check_vacuous
    from trained.loading import load

    certificate = read_certificate(file)
    built = load(model or certificate["model"]["name"])
    reason = not_covered(built) or _untrue(certificate)
    if certificate["model"].get("spec") not in (None, json.loads(json.dumps(built.spec.to_dict()))):
        reason = reason or "it is about a model of another spec"
    if reason:
        raise CheckpointError(f"{file} does not hold: {reason}")
    claims = any(not proof.get("vacuous") for proof in certificate["strategies"])
    verdicts = (check if claims else check_vacuous)(certificate, built, sha256_of(built))
    for v in verdicts:
        words = v.note or f"claimed {v.claimed:.9g}, found {v.found:.9g}"
        typer.echo(f"{'holds' if v.holds else 'FAILS'}  {v.strategy}: {words}")
        for _, part, statement, number in v.lemmas if v.holds else ():
            typer.echo(f"    found again  {part}: {statement}: {number:.9g}")
    vacuous = [str(proof["strategy"]) for proof in certificate["strategies"] if proof["vacuous"]]
    typer.echo(f"not checked: {', '.join([*_NOT_CHECKED, *(vacuous if claims else [])])}")
    wrong = [v.strategy for v in verdicts if not v.holds]
    if wrong:
        raise CheckpointError(f"{file} does not hold: {', '.join(wrong)}")
    if not claims:
        typer.echo("nothing is claimed: every bound is vacuous, and was found to be so again")


def _untrue(certificate: dict[str, Any]) -> str:
    """Return where the statement of a certificate is not that of its domain; empty if it is."""
    from interp.errors import ProoflensError
    from interp.tasks.catalogue import task_from_dict
    from probes.certify.run import domain_of

    if not certificate["strategies"]:
        return "it tells of no strategy"
    told = certificate["domain"]
    try:
        size = {"length": told.get("length"), "box": told.get("box", 1.0)}
        domain = domain_of(task_from_dict(told["task"]), **size)
    except (ProoflensError, LookupError, TypeError, ValueError, AttributeError) as error:
        return f"its domain is none ({error})"
    kinds = {proof.get("kind") for proof in certificate["strategies"]} | {certificate["kind"]}
    if told.get("kind") != domain.describe()["kind"] or kinds != {domain.kind}:
        return f"it bounds {', '.join(map(str, kinds))}, its task has {domain.kind}"
    if certificate["statement"] != domain.statement:
        return f"it says {certificate['statement']!r}, its domain is {domain.statement!r}"
    if certificate.get("trivial") != domain.trivial:
        told = certificate.get("trivial")
        return f"it says that a constant answer reaches {told}, it reaches {domain.trivial}"
    return ""
