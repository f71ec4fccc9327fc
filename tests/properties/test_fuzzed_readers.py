"""Spoilt files: a reader takes them or refuses them in words, whatever was done to them.

Bytes are put, taken and doubled anywhere, and values of JSON exchanged for others. What is refused
is refused by an error of ours: another exception is a mistake. ``PROOFLENS_FUZZ`` says how many
files are tried instead of a few.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from readers import READERS

from interp.errors import ProoflensError
from interp.store.measurements import read_measurement

TRIED = int(os.environ.get("PROOFLENS_FUZZ", "8"))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 9), st.integers(), st.sampled_from([2**63, -(2**63)]),
    st.floats(), st.text(max_size=4), st.just([]), st.just({}), st.lists(st.integers(0, 3)),
    st.recursive(st.integers(0, 3), lambda inner: st.lists(inner, max_size=2), max_leaves=4),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip
BYTES = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([
        b'"', b"{", b"[", b"]", b"}", b",", b":", b"\n", b"\0", b"\xff", b"-", b"9" * 30, b"1e999",
        b"nan", b"null", b"#", b"(", b")", b"=", b".", b" ",
    ]),
)  # fmt: skip


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield here
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*here, key))


def put(value: Any, place: tuple[Any, ...], new: Any, drop: bool) -> Any:
    """The value with another at a place, or without what was there."""
    if not place:
        return new
    first, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    if drop and not rest:
        del copy[first]
    else:
        copy[first] = put(value[first], tuple(rest), new, drop)
    return copy


@st.composite
def spoilt(draw: st.DrawFn, good: bytes) -> bytes:
    """A good file with one to three things done to it."""
    data = good
    for _ in range(draw(st.integers(1, 3))):
        lines = data.split(b"\n")
        number = draw(st.integers(0, len(lines) - 1))
        for piece, rebuilt in ((data, None), (lines[number], number)):
            try:
                value = json.loads(piece)
            except ValueError:
                continue
            if isinstance(value, dict | list) and draw(st.integers(0, 3)):
                place = draw(st.sampled_from(list(places(value))))
                new = json.dumps(put(value, place, draw(VALUES), draw(st.booleans()))).encode()
                data = (
                    new
                    if rebuilt is None
                    else b"\n".join([*lines[:number], new, *lines[number + 1 :]])
                )
                break
        else:
            at = draw(st.integers(0, len(data)))
            gone = draw(st.integers(0, 6))
            again = data[at : at + draw(st.integers(0, 40))] if draw(st.booleans()) else b""
            data = data[:at] + again + draw(BYTES) + data[at + gone :]
    return data


@pytest.mark.parametrize("name", READERS)
def test_a_spoilt_file_is_read_or_refused(name: str, home: Path) -> None:
    reader = READERS[name]
    file = home / reader.file
    good = file.read_bytes()
    reader.read(home)

    @settings(
        max_examples=TRIED, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(spoilt(good))
    @example(b"")
    def try_bytes(data: bytes) -> None:
        file.write_bytes(data)
        with contextlib.suppress(ProoflensError):
            reader.read(home)

    try:
        try_bytes()
    finally:
        file.write_bytes(good)


FOUND = {
    "config": (b'"n_layer": 1', b'"n_layer": 9223372036854775808'),
    "index": (b'"sha256"', b'"sha265"'),
}
"""What was found once, as exchanges of bytes."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_is_refused_in_words(name: str, home: Path) -> None:
    reader, good = READERS[name], (home / READERS[name].file).read_bytes()
    try:
        (home / reader.file).write_bytes(good.replace(*FOUND[name]))
        with pytest.raises(ProoflensError):
            reader.read(home)
    finally:
        (home / reader.file).write_bytes(good)


def test_text_of_a_spoilt_table_is_not_looked_at(home: Path) -> None:
    """The library in C read such a text for ever."""
    file = home / "st/measurements-scores.h5"
    good = file.read_bytes()
    try:
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(ProoflensError, match="is not as it was sealed"):
            read_measurement(home / "st", "scores")
    finally:
        file.write_bytes(good)
