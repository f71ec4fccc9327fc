"""Writes docs/schemas: JSON Schema of what commands print with ``--json``, and of every table.

    python docs/json_schemas.py

The schemas follow from the TypedDicts that the commands build and the measurements are held against
(``prooflens/cli/outputs.py``, ``probes/columns.py``); a test fails where a file is not what this
writes.
"""

import json
import types
from inspect import cleandoc
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from probes.columns import TABLES, TableColumns
from prooflens.cli.outputs import OUTPUTS

FOLDER = Path(__file__).parent / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LINES = {
    "type": "array",
    "items": {"type": "string"},
    "description": "What would have been printed.",
}


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type: a plain one, a list, a dictionary, a union, or a TypedDict."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return {**schema_of(inner[0]), "description": inner[1]}
    if is_typeddict(kind):
        return object_of(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": schema_of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if origin in (Union, types.UnionType):
        plain = [_PLAIN.get(one) for one in inner]
        return {"type": plain} if all(plain) else {"anyOf": [schema_of(one) for one in inner]}
    return {} if kind is Any else {"type": _PLAIN[kind]}


def object_of(row: type) -> dict[str, Any]:
    """The schema of a TypedDict: its keys alone, and all of them that are required."""
    hints = get_type_hints(row, include_extras=True)
    optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
    plain = {n: get_args(hint)[0] if n in optional else hint for n, hint in hints.items()}
    return {
        "title": row.__name__,
        "description": cleandoc(row.__doc__ or ""),
        "type": "object",
        "properties": {name: schema_of(hint) for name, hint in plain.items()},
        "required": [name for name in hints if name not in optional],
        "additionalProperties": False,
    }


def output_schema(variants: tuple[type, ...]) -> dict[str, Any]:
    """The schema of what a command prints: one of some objects, each with its lines."""
    found = []
    for variant in variants:
        whole = object_of(variant)
        whole["properties"] = {"lines": _LINES, **whole["properties"]}
        whole["required"] = ["lines", *whole["required"]]
        found.append(whole)
    return found[0] if len(found) == 1 else {"anyOf": found}


def table_schema(table: TableColumns) -> dict[str, Any]:
    """The schema of a table as a list of rows."""
    row = object_of(table.row)
    if table.pattern:
        column = {"type": ["number", "null"], "description": table.further}
        row["patternProperties"] = {table.pattern: column}
    return {"type": "array", "items": row}


def schemas() -> dict[str, str]:
    """The name of each file → its text."""
    found = {f"{name}.json": output_schema(variants) for name, variants in OUTPUTS.items()}
    found |= {f"tables/{name}.json": table_schema(table) for name, table in TABLES.items()}
    return {
        name: json.dumps({"$schema": DIALECT, **schema}, indent=1, ensure_ascii=False) + "\n"
        for name, schema in found.items()
    }


if __name__ == "__main__":
    for name, text in schemas().items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")
