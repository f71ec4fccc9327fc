"""Imports point one way: the layout shows the architecture, and this keeps it so."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEAVES = {"interp.errors", "interp.lens", "interp.output", "interp.threads"}

# Each room, and the rooms it may import from (always itself and the leaves besides).
MAY_IMPORT = {
    "interp.errors": set(),
    "interp.lens": set(),
    "interp.output": {"interp.errors"},
    "interp.threads": set(),
    "interp.crasp": set(),
    "interp.models": set(),
    "interp.tasks": {"interp.crasp"},
    "interp.proofs": {"interp.tasks", "interp.models", "interp.crasp"},
    "interp.store": {"interp.tasks.base"},
    "interp.heads": {"interp.store", "interp.models.factors", "interp.tasks.base"},
    "interp.figures": set(),
    "probes": {"interp"},
    "trained": {"interp"},
    "analyses": {"interp", "probes", "trained"},
}
WITHOUT_LEAVES = {*LEAVES, "interp.figures"}


def modules() -> list[Path]:
    folders = ("interp", "probes", "trained", "analyses")
    return sorted(p for f in folders for p in (ROOT / f).rglob("*.py"))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def inside(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(name: str) -> str | None:
    rooms = [room for room in MAY_IMPORT if inside(name, room)]
    return max(rooms, key=len, default=None)


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_imports_point_one_way(path: Path) -> None:
    name = dotted(path)
    room = room_of(name)
    if room is None:
        assert name == "interp", f"{name} stands in no room of the house"
        return
    allowed = MAY_IMPORT[room] | {room} | (set() if room in WITHOUT_LEAVES else LEAVES)
    for target in imported(path):
        if target.split(".")[0] in ("interp", "probes", "trained", "analyses", "tests"):
            ok = any(inside(target, a) for a in allowed)
            assert ok, f"{name} ({room}) may not import {target}"


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_only_the_lens_imports_transformer_lens(path: Path) -> None:
    if dotted(path) != "interp.lens":
        assert not any(inside(t, "transformer_lens") for t in imported(path))


@pytest.mark.parametrize("path", modules(), ids=dotted)
def test_library_neither_prints_nor_asserts(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Assert), f"{path}:{node.lineno} assert outside tests"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{path}:{node.lineno} print"
