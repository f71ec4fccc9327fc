"""Files that appear whole or not at all, and files of others, refused in one line if damaged."""

from interp.lock import LOCK, alone
from interp.output import (
    append_line,
    check_output,
    drop,
    fsync,
    json_data,
    need_name,
    output_file,
    output_folder,
    replace_text,
    sweep,
)
from interp.reading import parse_toml, read_json, read_text, read_toml, regular
from interp.schema import each, many, number, table, text, whole
from trained.stack_runner import digest

__all__ = [
    "LOCK",
    "alone",
    "append_line",
    "check_output",
    "digest",
    "drop",
    "each",
    "fsync",
    "json_data",
    "many",
    "need_name",
    "number",
    "output_file",
    "output_folder",
    "parse_toml",
    "read_json",
    "read_text",
    "read_toml",
    "regular",
    "replace_text",
    "sweep",
    "table",
    "text",
    "whole",
]
