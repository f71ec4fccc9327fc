"""The viewer in the package is what its sources make, which can be told without Node."""

from analyses.viewer_digest import FOLDER, source_digest


def test_the_viewer_is_what_its_sources_make() -> None:
    """``make viewer`` writes the sources' digest into the file it builds."""
    assert (FOLDER / "viewer.js").read_text().startswith(f"/* sources {source_digest()} */\n")
