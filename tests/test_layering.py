"""Imports point one way: the layout shows the architecture, and this keeps it so."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LENS = "interp.hooks.transformer_lens_adapter"
PRODUCT = {"prooflens", "interp", "probes", "trained"}

# Each room, and the rooms it may import from, from the ground up (always itself besides).
GROUND = {
    "interp.errors", "interp.threads", "interp.output", "interp.lazy", "interp.lock",
    "interp.reading", "interp.schema", "interp.machine", "interp.plugins", "interp.environment",
    "interp.ray_tasks", "interp.telling",
}  # fmt: skip
MAY_IMPORT = {
    "interp.errors": set(),
    "interp.threads": set(),
    "interp.telling": set(),
    "interp.lazy": set(),
    "interp.schema": {"interp.errors"},
    "interp.environment": set(),
    "interp.output": {"interp.errors", "interp.environment"},
    "interp.lock": {"interp.errors"},
    "interp.reading": {"interp.errors", "interp.schema"},
    "interp.machine": {"interp.errors"},
    "interp.plugins": {"interp.errors"},
    "interp.ray_tasks": {"interp.errors"},
    "interp.figures": {"interp.lazy", "interp.output"},
    "interp.bounds": {"interp.errors"},
    "interp.stats": GROUND,
    "interp.hooks": GROUND,
    "interp.weights": {*GROUND, "interp.stats"},
    "interp.program": GROUND,
    "interp.models": {*GROUND, "interp.hooks", "interp.weights"},
    "interp.tasks": {*GROUND, "interp.program"},
    "interp.store": {*GROUND, "interp.stats.table_format", "interp.hooks", "interp.tasks.base"},
    "interp.proofs": {
        *GROUND, "interp.hooks.site", "interp.tasks", "interp.models", "interp.program",
        "interp.bounds",
    },
    "interp.run": {*GROUND, "interp.hooks", "interp.tasks.base"},
    "interp.interventions": {
        *GROUND, "interp.hooks", "interp.stats", "interp.tasks.base", "interp.run",
    },
    "interp.attribution": {
        *GROUND, "interp.hooks", "interp.stats", "interp.tasks.base", "interp.store",
        "interp.interventions", "interp.run",
    },
    "interp.attention": {
        *GROUND, "interp.hooks", "interp.stats", "interp.tasks.base", "interp.store",
        "interp.interventions", "interp.attribution", "interp.weights", "interp.run",
    },
    "probes": {"interp"},
    "trained": {"interp"},
    "prooflens.pages": {"interp", "probes", "trained"},
    "prooflens.plot": {"interp", "probes"},
    "prooflens.demo": {"interp", "probes", "trained", "prooflens.pages", "prooflens.inspection"},
    "prooflens.cli": {"interp", "probes", "trained", "prooflens"},
    "prooflens": {"interp", "probes", "trained", "prooflens"},
}  # fmt: skip


@cache
def modules() -> tuple[Path, ...]:
    folders = ("prooflens", "interp", "probes", "trained")
    return tuple(sorted(p for f in folders for p in (ROOT / f).rglob("*.py")))


@cache
def laboratory() -> tuple[Path, ...]:
    return tuple(sorted((ROOT / "analyses").rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def inside(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


def imports_of(module: ast.AST) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def file_imports(path: Path) -> frozenset[str]:
    return frozenset(imports_of(tree(path)))


def within(path: Path, known: set[str]) -> set[str]:
    """The product's own modules that a file imports, for types alone as well."""
    found = set()
    for name in file_imports(path):
        while name and name not in known:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {"", module_name(path)}


def circles(imports: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Sets of names of which each imports the others, directly or through one another."""
    reached = {name: set(targets) for name, targets in imports.items()}
    for through in imports:
        for targets in reached.values():
            if through in targets:
                targets |= reached[through]
    return {
        frozenset(b for b in reached[a] if a in reached.get(b, ()))
        for a in imports
        if a in reached[a]
    }


def room_of(name: str) -> str | None:
    rooms = [room for room in MAY_IMPORT if inside(name, room)]
    return max(rooms, key=len, default=None)


def test_imports_point_one_way() -> None:
    wrong = []
    for path in modules():
        name = module_name(path)
        room = room_of(name)
        if room is None:
            assert name == "interp", f"{name} stands in no room of the house"
            continue
        ours = (t for t in file_imports(path) if t.split(".")[0] in PRODUCT | {"analyses", "tests"})
        allowed = MAY_IMPORT[room] | {room}
        wrong += [(name, t) for t in ours if not any(inside(t, a) for a in allowed)]
    assert wrong == [], "a module imports what its room may not"


def test_a_circle_is_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"a"}}
    assert circles(imports) == {frozenset("abc")}
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()


def test_no_file_imports_itself_through_others() -> None:
    known = {module_name(path) for path in modules()}
    assert circles({module_name(path): within(path, known) for path in modules()}) == set()


@pytest.mark.parametrize("top", ["prooflens", "interp", "probes", "trained"])
def test_no_folder_imports_itself_through_others(top: str) -> None:
    """Folders and files that stand side by side: ``analyses.papers`` and ``prooflens.pages``."""
    known, imports = {module_name(path) for path in modules()}, defaultdict[str, set[str]](set)
    for path in modules():
        if inside(module_name(path), top) and module_name(path) != top:
            folder = ".".join(module_name(path).split(".")[:2])
            found = {name for name in within(path, known) if inside(name, top) and name != top}
            imports[folder] |= {".".join(name.split(".")[:2]) for name in found} - {folder}
    assert circles(imports) == set()


ENGINES = ("interp.run", "interp.hooks", "interp.models", "interp.interventions", "interp.store",
           "interp.attribution", "interp.attention", "interp.tasks", "interp.proofs",
           "interp.weights.head_weights", "interp.weights.weight_table")  # fmt: skip
DRAWS = {
    "probes.columns", "probes.roles", "probes.roles.decision", "probes.roles.profile",
    "trained.shipped_names",
}  # fmt: skip
"""What a page may ask of measurement: names and meanings."""


@cache
def run_time_imports(path: Path) -> tuple[str, ...]:
    """What a module imports when it is imported or run: all but for types."""

    class WithoutTypes(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            self.generic_visit(node)
            return node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else node

    return tuple(imports_of(WithoutTypes().visit(ast.parse(path.read_text()))))


def reachable_modules(start: str, known: set[str]) -> set[str]:
    """Every module of the product that is imported with one, but for types."""
    paths, found, left = {module_name(path): path for path in modules()}, set(), [start]
    while left:
        name = left.pop()
        if name in found or name not in paths:
            continue
        found.add(name)
        for target in run_time_imports(paths[name]):
            while target and target not in known:
                target = target.rpartition(".")[0]
            left += [target] if target else []
    return found


PAGES = ("inspection", "probing", "rounds", "certify", "weights", "over_training", "decompiled")


@pytest.mark.parametrize("page", PAGES)
def test_pages_render_and_enter_no_engine(page: str) -> None:
    found = reachable_modules(f"prooflens.pages.{page}", {module_name(path) for path in modules()})
    assert not [name for name in found if any(inside(name, engine) for engine in ENGINES)]
    measuring = {name for name in found if name.split(".")[0] in ("probes", "trained")}
    assert measuring - {"probes", "trained"} <= DRAWS


def test_the_laboratory_uses_the_door() -> None:
    """``prooflens`` and its public submodules: ``from prooflens.tasks import FixedMemory``, never
    ``prooflens.pages.page``, for what stands behind them is not for users."""
    wrong = []
    for path in laboratory():
        for target in file_imports(path):
            top, *more = target.split(".")
            behind = top != "prooflens" or more[:1] == ["cli"] or len(more) > 2
            wrong += [(module_name(path), target)] * (top in PRODUCT and behind)
    assert wrong == []


def test_the_product_knows_nothing_of_the_laboratory_and_one_module_of_the_lens() -> None:
    for path in modules():
        others = ["analyses"] if module_name(path) == LENS else ["analyses", "transformer_lens"]
        assert not [t for t in file_imports(path) if any(inside(t, one) for one in others)], path


def test_library_neither_prints_nor_asserts() -> None:
    for path in (*modules(), *laboratory()):
        for node in ast.walk(tree(path)):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno} assert outside tests"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno} print"


def test_hook_names_are_written_and_read_in_one_place() -> None:
    """``Site(layer, "pattern").name`` and ``Site.of(name).layer``, never the text itself."""
    for path in modules():
        if module_name(path) != "interp.hooks.site":
            text = path.read_text()
            written = re.search(r'f"blocks\.\{[^"]*hook_', text)
            assert written is None, f"{path} formats a hook's name: {written and written.group()}"
            assert not re.search(r'split\("\."\)\[1\]', text), f"{path} parses a hook's name"


DETECTORS = sorted((ROOT / "probes" / "roles" / "detectors").glob("*.py"))
GIVEN = {"of", "evidence", "effects", "reader", "reading", "fetching"}
CHANGES = {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault",
           "update", "__setattr__", "setattr"}  # fmt: skip


def write_targets(text: str) -> set[str]:
    """Of what a detector is given (:class:`probes.roles.examined.Examined` and its parts), what it
    assigns to, takes away or calls a changing method of."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        owners = []
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            owners = [node.value]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owners = [node.func.value] if node.func.attr in CHANGES else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            owners = node.args[:1] if node.func.id in CHANGES else []
        for part in (part for owner in owners for part in ast.walk(owner)):
            name = getattr(part, "id", getattr(part, "attr", "")).removeprefix("_")
            if name in GIVEN:
                found.add(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", DETECTORS, ids=module_name)
def test_detectors_write_into_nothing_that_they_are_given(path: Path) -> None:
    """They are functions: what they find, they return."""
    assert write_targets(path.read_text()) == set()


@pytest.mark.parametrize(
    "line",
    [
        'evidence.lacks["sink"] = "why"',
        "evidence.lacks |= {}",
        "of.evidence.lacks.setdefault(role, {})[place] = keys",
        "self._evidence.found = 1",
        "del evidence.lacks[role]",
        "found.append(setattr(evidence, name, 1))",
    ],
)
def test_a_detector_that_writes_is_found(line: str) -> None:
    assert write_targets(line)
    assert not write_targets("self.evidence = evidence\nkeys = evidence.keys(kind)[0]\nnew[of] = 1")
