"""The notebooks run from top to bottom, and are kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "notebooks"
FILES = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own packages
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_notebook_holds_no_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_there_are_notebooks() -> None:
    assert {path.stem for path in FILES} == {
        "decompile", "gpt2-heads", "inspect-code-lm", "nested-memory", "proof-against-training",
        "store-and-probes", "your-own-module",
    }  # fmt: skip
