"""Detect FFNs that are tables over a few numbers.

    n        numbers that a linear map reads off the stream before the FFN (r² ≥ .9): latents of the
             task, the position, and of tasks with at most eight tokens, for each token but the
             smallest, whether it stands here and its share of the positions so far. Where these do
             not suffice also directions in which the input, or what a head wrote, varies most.
             They are chosen one or two at a time by what they explain of what the FFN writes, four
             at most, with all rows in view
    ŵ        what a table over n, fitted on one half of the rows, says that the FFN writes on the
             other half

    behaviour  with ŵ in place of what the FFN writes, at all positions and on all rows, at least .9
               of what the FFN does to the output is kept: 1 − (change by ŵ) / (change without it).
               Numbers are added in the order in which they were chosen until that is so, and are
               the role's target
               the loss is lower than with what the FFN writes turned at random
               (:mod:`probes.roles.turned`)
    cause      without the FFN the loss rises

The role says on what the FFN's part in the answers depends. It does not say that other numbers
would not index the table as well (of two that nearly follow from each other either may be named),
nor that the FFN reads them one by one. Where the stream varies in four dimensions or fewer, any FFN
that is needed may be such a table. FFNs that compute, fetch or sharpen something with a name have
the stricter roles of :mod:`probes.roles.detectors.ffns`.
"""

from __future__ import annotations

from collections.abc import Iterator

from interp.hooks.site import Site
from interp.interventions.components import Component, components
from interp.run import Array, Replace
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.examined import Examined
from probes.roles.ffn_tables import short_tables
from probes.roles.reader import Reader
from probes.roles.turned import beyond_turned

_ROLE = "lookup"
_MOST = 4
"""The most numbers of a table that still is a short description."""


def lookup_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test whether what every FFN does to the output is a table over a few numbers.

    Yields:
        A finding for each FFN, whether its tests pass or not; or why the role could not be tested
        for.
    """
    reader = of.reader
    if of.effects is None:
        return
    if reader is None:
        yield Lacking(_ROLE, "no memories, answers or sought latents of the rows are named")
        return
    if not of.evidence.targets:
        yield Lacking(_ROLE, "without targets there is no loss that could rise")
        return
    for part in components(reader.model):
        if part.kind == "ffn":
            yield _finding(reader, part)


def _finding(reader: Reader, part: Component) -> Found:
    cause = reader.necessity_tests([part])[:1]
    kept, names = Test("kept with a table over numbers", 0.0, reader.floors.tabled), ""
    run = reader.evidence.run("given")
    tables = short_tables(run, part.layer, reader.latents, _MOST)
    for chosen, said in tables if holds(cause) else ():
        words = ", ".join(chosen)
        edit = Replace(Site(part.layer, "mlp_out"), Array(said.float(), f"a table over {words}"))
        name = f"of what it does to the output, kept with a table over {words}"
        found = reader.effects.kept_output(reader.ablation([part]), (edit,), name, kept.floor)
        if found.score > kept.score:
            kept, names = found, words
        if kept.score >= kept.floor:
            break
    asked = kept.score >= kept.floor
    tests = [kept, beyond_turned(reader.effects, part, asked=asked)]
    return Found("ffn", part.layer, _ROLE, kept.score, tests, cause, target=names)
