"""Which settings a diagram trains: a map over two options, and strips in which one option varies.

    map     {across, columns, down, rows}     every combination of two options' values
    strips  [{vary, over, given?}, …]         one option at a time; ``given`` are others that differ

Everything else is as the profile says. A setting that several parts share is trained once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from prooflens.errors import Problems

__all__ = ["PointPart", "check_parts", "parts_of", "points_of", "rows_at", "varied_options"]

Point = dict[str, Any]


@dataclass(frozen=True)
class PointPart:
    """A map (``down`` is given) or a strip of a diagram.

    Attributes:
        across: The option that varies from left to right, with its values ``columns``.
        down: The option that varies from top to bottom, with its values ``rows``; empty for a
            strip.
        given: Options that differ from the profile's in the whole part.
    """

    across: str
    columns: tuple[Any, ...]
    down: str = ""
    rows: tuple[Any, ...] = ()
    given: tuple[tuple[str, Any], ...] = ()

    def points(self) -> Iterator[Point]:
        """Yield the part's settings, each as changes to the profile's options."""
        for row in self.rows or (None,):
            for column in self.columns:
                yield {
                    **dict(self.given),
                    **({self.down: row} if self.down else {}),
                    self.across: column,
                }


def parts_of(options: Mapping[str, Any]) -> tuple[PointPart, ...]:
    """Return the parts of a diagram: the map, then the strips."""
    grid = options["map"]
    first = PointPart(grid["across"], tuple(grid["columns"]), grid["down"], tuple(grid["rows"]))
    strips = (
        PointPart(strip["vary"], tuple(strip["over"]), given=tuple(strip.get("given", {}).items()))
        for strip in options["strips"]
    )
    return (first, *strips)


def check_parts(options: Mapping[str, Any]) -> None:
    """Refuse parts over options that the profile does not name, and expectations about options that
    do not vary.

    Raises:
        ArgumentError: naming each such option.
    """
    problems = Problems("diagram")
    for name in varied_options(options):
        rule = "must be one of the profile's options"
        problems.need(name in options, "map and strips", rule, name, "name its value there")
    for named in (*options["found"], *options["otherwise"]):
        for name in named:
            rule = "must be an option that varies in the map or a strip"
            problems.need(
                name in varied_options(options), "found and otherwise", rule, name, "drop it"
            )
    problems.raise_if_any()


def varied_options(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that vary in some part, in order of appearance."""
    parts = parts_of(options)
    names = [n for p in parts for n in (p.across, p.down, *dict(p.given)) if n]
    return tuple(dict.fromkeys(names))


def points_of(options: Mapping[str, Any]) -> list[Point]:
    """Return every setting of the diagram once, as the value of each option that varies
    anywhere."""
    names = varied_options(options)
    found = {}
    for part in parts_of(options):
        for changes in part.points():
            point = {name: changes.get(name, options[name]) for name in names}
            found[tuple(map(str, point.values()))] = point
    return list(found.values())


def rows_at(
    table: pd.DataFrame, changes: Mapping[str, Any], options: Mapping[str, Any]
) -> pd.DataFrame:
    """Return the rows of the models that were trained in one setting.

    Args:
        table: One row per model, with a column for each option that varies.
        changes: The setting, as changes of the profile's options.
        options: The options of the profile.
    """
    names: Sequence[str] = varied_options(options)
    wanted = {name: changes.get(name, options[name]) for name in names}
    same = pd.Series(data=True, index=table.index)
    for name, value in wanted.items():
        same &= table[name] == value
    return table[same]
