"""What is told of long work: what is being done, since when, and what is left."""

from threading import Event

from interp import telling
from interp.telling import Doing, count, count_items, step


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_says_what_is_left_of_what_can_be_counted() -> None:
    clock = Clock()
    doing = Doing("prooflens inspect", clock)
    clock.now = 31.0
    assert doing.line() == "prooflens inspect: working, 31 s so far"
    doing.step("roles")
    doing.count(0, 8)
    clock.now = 91.0
    assert doing.line() == "prooflens inspect: roles, 0 of 8 done, 91 s so far"
    doing.count(2, 8)
    assert doing.line() == (
        "prooflens inspect: roles, 2 of 8 done, 91 s so far, about 3 min left of this"
    )
    doing.step("the page")
    assert doing.line() == "prooflens inspect: the page, 91 s so far"


def test_an_inner_loop_does_not_hide_how_long_the_outer_one_takes() -> None:
    clock = Clock()
    doing = Doing("work", clock)
    doing.count(0, 4)
    begun = doing.since
    clock.now = 100.0
    doing.count(5, 9)
    doing.count(1, 4, begun)
    assert doing.line() == "work: working, 1 of 4 done, 100 s so far, about 5 min left of this"


def test_lines_are_told_while_the_block_runs_and_loops_inside_loops_give_back() -> None:
    told, lines = Event(), list[str]()

    def say(line: str) -> None:
        lines.append(line)
        told.set()

    with telling.telling("work", say, every=0.001) as doing:
        step("outer")
        for at in count_items(range(4)):
            assert [*count_items("ab")] == ["a", "b"]
            assert (doing.done, doing.of) == (at, 4)
        assert told.wait(60)
    assert lines[0].startswith("work: ")


def test_outside_such_a_block_nobody_is_told() -> None:
    step("nothing")
    count(1, 2)
    assert [*count_items([1, 2])] == [1, 2]
