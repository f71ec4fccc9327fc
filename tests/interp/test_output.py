from pathlib import Path

import pytest

from interp.errors import OutputError
from interp.output import check_output, output_file, output_folder


def make(out: Path, text: str, *, overwrite: bool = False) -> None:
    with output_folder(out, overwrite=overwrite, marker="mark") as draft:
        (draft / "mark").write_text(text)


def test_folder_appears_whole_and_is_replaced_only_when_told(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    make(out, "one")
    with pytest.raises(OutputError, match="exists"):
        make(out, "two")
    make(out, "two", overwrite=True)
    assert (out / "mark").read_text() == "two"
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_interrupted_work_leaves_the_old_result(tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(out, "old")
    with (
        pytest.raises(KeyboardInterrupt),
        output_folder(out, overwrite=True, marker="mark") as draft,
    ):
        (draft / "mark").write_text("half")
        raise KeyboardInterrupt
    assert (out / "mark").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_file_is_not_replaced_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is not a folder"):
        make(tmp_path / "file", "x", overwrite=True)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_place_that_takes_no_files_is_refused_before_the_work() -> None:
    """For root, too, to whom every folder seems to be one that can be written."""
    with pytest.raises(OutputError, match="/proc is no folder that can be written; choose another"):
        check_output(Path("/proc/new/x"), overwrite=False)


def test_a_folder_of_other_things_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(OutputError, match=r"nothing to resume, but other things and no \.done"):
        check_output(tmp_path, overwrite=False, resume=True, marker=".done")
    with pytest.raises(OutputError, match="exists: choose another name"):
        check_output(tmp_path, overwrite=False, marker=".done")
    (tmp_path / ".done").touch()
    check_output(tmp_path, overwrite=False, resume=True, marker=".done")


def test_file_appears_whole(tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    with output_file(out, overwrite=False) as draft:
        draft.write_text("1")
    with pytest.raises(OutputError, match="exists"), output_file(out, overwrite=False):
        pass
    with pytest.raises(ValueError, match="boom"), output_file(out, overwrite=True) as draft:
        draft.write_text("2")
        raise ValueError("boom")
    assert out.read_text() == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]
