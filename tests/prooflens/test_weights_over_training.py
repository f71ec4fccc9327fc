"""``prooflens weights --revisions`` from the outside."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

ASKED = ["weights", "code-lm", "--revisions", "step-500,main", "--metrics", "trace_share"]


def test_a_page_a_figure_and_a_table(tmp_path: Path, told: Any) -> None:
    out = tmp_path / "page"
    said = told(*ASKED, "--out", out)
    assert said.splitlines()[-1] == f"report: {out / 'report.html'}"
    names = {path.name for path in out.iterdir()}
    assert names >= {"report.html", "weights.csv", "findings.txt", "heads-over-training.png",
                     "heads-over-training.svg"}  # fmt: skip
    table = pd.read_csv(out / "weights.csv")
    assert table["revision"].value_counts().to_dict() == {"step-500": 48, "main": 48}
    page = (out / "report.html").read_text()
    assert "Heads of code-lm over training" in page
    for line in (out / "findings.txt").read_text().splitlines():
        assert line in said


def test_a_csv_and_json(tmp_path: Path, told: Any) -> None:
    out = tmp_path / "table.csv"
    found = json.loads(told(*ASKED, "--out", out, "--json"))
    assert found["revisions"] == ["step-500", "main"]
    assert found["rows"] == len(pd.read_csv(out)) == 96
    assert (tmp_path / "table.environment.json").is_file()
    table = json.loads(told(*ASKED, "--json"))["table"]
    assert len(table) == 96
    assert {row["revision"] for row in table} == {"step-500", "main"}
