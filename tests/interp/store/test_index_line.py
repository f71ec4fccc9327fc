"""A line of the index that is read by its differences gives what parsing it would give."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from interp.errors import StoreError
from interp.reading import parse_json
from interp.store.layout import LineReader, entry_faults

FIRST = {
    "kind": "part",
    "part": 0,
    "file": "part-00000.h5",
    "rows": [[0, 3]],
    "n": 3,
    "bytes": 900,
    "sha256": "0123456789abcdef" * 4,
    "source_sha256": "",
    "shapes": {"row": [3], "inputs": [3, 5]},
    "overflows": {},
}
WHOLE = (json.dumps(FIRST) + "\n").encode()


def parsed(line: bytes, place: str) -> tuple[dict[str, Any], list[str]]:
    try:
        entry = parse_json(line, place, StoreError)
    except StoreError as error:
        return {}, [str(error)]
    return entry if isinstance(entry, dict) else {}, entry_faults(entry, place)


def agrees(line: bytes) -> bool:
    reader = LineReader()
    return all(reader.read(one, "line 1") == parsed(one, "line 1") for one in (WHOLE, line, line))


def test_a_later_part_is_read_without_a_parser() -> None:
    later = FIRST | {"part": 123456, "file": "part-123456.h5", "rows": [[7, 10]]}
    line, reader = (json.dumps(later) + "\n").encode(), LineReader()
    first, _ = reader.read(WHOLE, "line 1")
    assert reader.read(line, "line 2") == (later, [])
    assert reader.read(line, "line 2")[0]["shapes"] is reader.read(line, "line 2")[0]["shapes"]
    assert first == FIRST


@given(st.data())
def test_no_change_of_a_line_is_read_otherwise(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(list(FIRST)))
    values = st.one_of(
        st.integers(-3, 2**70), st.sampled_from([*FIRST.values(), [[0, 2]], [[3, 3]], [[2, 5]], 4]),
        st.text(max_size=6), st.none(), st.booleans(), st.floats(),
    )  # fmt: skip
    entry = FIRST | {key: data.draw(values)}
    assert agrees((json.dumps(entry) + "\n").encode())


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3), st.integers(0, 3))
@example(WHOLE.index(b'"shapes"'), b'"n": 4, ', 0)
@example(WHOLE.index(b', "overflows"'), b', "part": 7', 0)
@example(WHOLE.index(b'"overflows"'), b'"n": 4, ', 0)
def test_no_bytes_in_a_line_are_read_otherwise(at: int, put: bytes, dropped: int) -> None:
    assert agrees(WHOLE[:at] + put + WHOLE[at + dropped :])


def test_keys_that_come_twice_are_read_as_the_parser_reads_them() -> None:
    """The last one counts: the end of a line may say again what precedes it."""
    twice = WHOLE.replace(b'"shapes"', b'"n": 3, "shapes"')
    again = WHOLE.replace(b"}}\n", b'}, "part": 5, "file": "part-00005.h5"}\n')
    for line in (twice, again, again.replace(b'"part": 0', b'"part": 9')):
        reader = LineReader()
        assert [reader.read(one, "it") for one in (line, line)] == [parsed(line, "it")] * 2
