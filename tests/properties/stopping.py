"""One piece of work, stopped at each of its file operations in turn, and what must hold afterwards.

At the output's place is the older result or the new one, whole; running again finishes; what is
then there equals an undisturbed run bit for bit; and nothing lies beside it.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from file_faults import KILLED, run, warm
from forked_calls import BROKEN

Tree = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """A piece of work on the folder ``root``.

    Attributes:
        work: What is stopped.
        again: What finishes it then; the work itself by default.
        sound: What must hold of ``root`` at once after the stop.
        tail: How many of the last operations are tried, all if 0; and a few before.
    """

    work: Callable[[Path], Callable[[], None]]
    again: Callable[[Path], Callable[[], None]] | None = None
    sound: Callable[[Path, Tree, Tree], bool] = lambda root, before, after: (
        finished_files(tree(root)) in (before, after)
    )
    tail: int = 0


def tree(root: Path) -> Tree:
    """Every file under ``root`` by its name, without the locks, whose files stay."""
    return {
        str(path.relative_to(root)): b"" if path.is_dir() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.name != ".lock"
    }


def finished_files(files: Tree) -> Tree:
    """What is not of a draft."""
    return {name: data for name, data in files.items() if ".draft" not in name}


def stopping_points(case: Case, operations: tuple[str, ...]) -> Iterator[int]:
    """Numbers of operations: all, or the last ones and some before them."""
    count = len(operations)
    first = max(1, count - case.tail + 1) if case.tail else 1
    before = (1, first // 3, first // 2, first - 1)
    yield from sorted({*before, *range(first, count + 1)} - {0})


def stop_everywhere(name: str, case: Case, start: Path, root: Path) -> None:
    """Stop the work at each chosen operation of a copy of ``start``, and check what is left."""
    before = tree(start)

    def fresh() -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(start, root)

    fresh()
    warm(case.work(root))
    fresh()
    whole = run(root, case.work(root))
    assert whole.code == 0, whole.said
    after = tree(root)
    assert after != before
    assert not [path for path in after if ".draft" in path]
    for at in stopping_points(case, whole.operations):
        for way in ("kill", *(("ENOSPC", "EIO")[at % 2 :][:1] if at % 3 == 0 else ())):
            fresh()
            stopped = run(root, case.work(root), at, way)
            told = f"{name}, {way} at {at}: {whole.operations[at - 1]}\n{stopped.said}"
            if way == "kill":
                assert stopped.code == KILLED, told
            else:
                assert stopped.code in (0, 1, 2, BROKEN), told
                check_refusal(stopped.code, stopped.said, told)
            assert case.sound(root, before, after), told
            again = run(root, (case.again or case.work)(root))
            if again.code == 2 and finished_files(tree(root)) == after:
                continue  # it was finished already
            assert again.code == 0, f"{told}\nagain: {again.said}"
            now = tree(root)
            unlike = [n for n in {*now, *after} if now.get(n) != after.get(n)]
            assert not unlike, f"{told}\nother than undisturbed: {unlike}"


def check_refusal(code: int, said: str, told: str) -> None:
    if code == BROKEN:  # called without the command line: an error of ours or the system's own
        assert "OutputError" in said or "StoreError" in said or "OSError" in said, told
        return
    assert "Traceback" not in said, told
    if code == 2:
        assert said.splitlines()[-1].startswith("prooflens: "), told
