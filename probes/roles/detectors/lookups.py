"""Detect FFNs that are tables over a few numbers.

    n        numbers that a linear map reads off the stream before the FFN: latents of the task, the
             token at the position, how often it came so far in the row; and where these do not do,
             directions of the token and of what each head wrote. Four at most, chosen one at a time
    ŵ        what a table over n, fitted on one half of the rows, says that the FFN writes on the
             other half

    behaviour  with ŵ in place of what the FFN writes, at all positions and on all rows, at least .9
               of what the FFN does to the output is kept: 1 − (change by ŵ) / (change without it).
               The fewest numbers that do are the target
               the loss is lower than with what the FFN writes turned at random
               (:mod:`probes.roles.turned`)
    cause      without the FFN the loss rises

The role says on what the FFN's part in the answers depends. It does not say that other numbers
would not index the table as well (of two that nearly follow from each other either may be named),
nor that the FFN reads them one by one. An FFN whose input has few values is a table over whatever
tells them apart. FFNs that compute, fetch or sharpen something with a name have the stricter roles
of :mod:`probes.roles.detectors.ffns`.
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
    if reader is None:
        return
    if not of.evidence.targets:
        yield Lacking(_ROLE, "without targets there is no loss that could rise")
        return
    for part in components(reader.model):
        if part.kind == "ffn":
            yield _finding(reader, part)


def _finding(reader: Reader, part: Component) -> Found:
    cause = reader.necessity_tests([part])
    kept, names = Test("kept with a table over numbers", 0.0, reader.floors.tabled), ""
    if holds(cause[:1]):
        kept, names = _shortest_table(reader, part, cause[-1].score)
    asked = kept.score >= kept.floor
    tests = [kept, beyond_turned(reader.effects, part, asked=asked)]
    return Found("ffn", part.layer, _ROLE, kept.score, tests, cause[:1], target=names)


def _shortest_table(reader: Reader, part: Component, whole: float) -> tuple[Test, str]:
    """Return the test of the table with the fewest numbers that passes, or of the best, and the
    numbers' names; ``whole`` is the change of the output without the FFN."""
    floor, site = reader.floors.tabled, Site(part.layer, "mlp_out")
    best, names = Test("kept with a table", 0.0, floor), ""
    for named in (True, False):
        tables = short_tables(
            reader.evidence.run("given"), part.layer, reader.latents, _MOST, named=named
        )
        for chosen, said in tables:
            words = ", ".join(chosen)
            edits = (Replace(site, Array(said.float(), f"a table over {words}")),)
            name = f"of what it does to the output, kept with a table over {words}"
            found = reader.effects.kept_output(whole, edits, name, floor)
            if found.score > best.score:
                best, names = found, words
            if best.score >= floor:
                return best, names
    return best, names
