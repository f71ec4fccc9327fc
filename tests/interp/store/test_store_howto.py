"""The how-to's code blocks run, one after the other, in an empty folder."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from prooflens.cli.main import app

HOWTO = Path(__file__).parents[3] / "docs" / "howto-store.md"


def test_code_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = re.findall(r"```(sh|python)\n(.*?)```", HOWTO.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 6
    for language, text in blocks:
        if language == "python":
            exec(compile(text, str(HOWTO), "exec"), names)  # noqa: S102
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line)
            assert program == "prooflens"
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, (line, result.output, result.exception)
    assert "(32, 1, 32, 32) ('row', 'head', 'query', 'key')" in capsys.readouterr().out
