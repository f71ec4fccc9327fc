from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from analyses.papers.base import Setting
from analyses.papers.coupling.image_set import NoisyImages
from analyses.papers.coupling.images import check, on_images
from interp.errors import ArgumentError


def random_images(n: int = 20, rows: int = 19, columns: int = 17) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, rows, columns, 3), dtype=np.uint8)


def direct_cells(images: np.ndarray) -> np.ndarray:
    found = np.zeros((len(images), 64))
    for i, image in enumerate(images):
        side = min(image.shape[:2]) // 8 * 8
        top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
        for row in range(side):
            for column in range(side):
                cell = row // (side // 8) * 8 + column // (side // 8)
                found[i, cell] += image[top + row, left + column].mean() / (side // 8) ** 2
    return (found - found.mean()) / found.std()


def test_a_file_an_archive_and_a_folder_give_the_same_cells(tmp_path: Path) -> None:
    images = random_images()
    np.save(tmp_path / "a.npy", images)
    np.savez(tmp_path / "a.npz", labels=np.arange(20), images=images)
    (tmp_path / "pngs" / "class").mkdir(parents=True)
    for i, image in enumerate(images):
        place = tmp_path / "pngs" / ("class" if i >= 10 else ".") / f"{i:02}.png"
        Image.fromarray(image).save(place)
    expected = direct_cells(images)
    for name in ("a.npy", "a.npz", "pngs"):
        task = NoisyImages(str(tmp_path / name), noise=0.0)
        assert task.count == 20
        clean = np.concatenate(
            [t.sample(400, seed=1).targets[..., 0].numpy() for t in (task, task.testing())]
        )
        distance = np.abs(clean[:, None] - expected[None]).max(-1)
        assert distance.min(1).max() < 1e-4  # every row is one of the images
        assert distance.min(0).max() < 1e-4  # and every image is met


def test_images_held_out_are_not_trained_on_and_noise_is_as_asked() -> None:
    task = NoisyImages(noise=0.5)
    trained, held = (t.sample(3000, seed=0) for t in (task, task.testing()))
    rows = {row.numpy().tobytes() for row in trained.targets}
    assert not rows & {row.numpy().tobytes() for row in held.targets}
    noise = (trained.inputs - trained.targets).numpy()
    assert noise.std() == pytest.approx(0.5, rel=0.01)
    assert abs(np.corrcoef(noise.ravel(), trained.targets.numpy().ravel())[0, 1]) < 0.01
    assert trained.mask.all()


class Trap:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (Path("touched"),)  # type: ignore[return-value]


def write_objects(place: Path) -> None:
    np.save(place, np.array([Trap()] * 30, dtype=object), allow_pickle=True)


REFUSED = {
    "absent.npy": (lambda place: None, "cannot be read: No such file"),
    "a.txt": (lambda place: place.write_text("x"), "must be a .npy or .npz file or a folder"),
    "objects.npy": (write_objects, "cannot be read as an array of images.*allow_pickle"),
    "flat.npy": (lambda p: np.save(p, np.zeros((30, 64))), r"\[image, row, column\].*\[30, 64\]"),
    "few.npy": (lambda p: np.save(p, random_images(19)), "20 images at least, got 19"),
    "small.npy": (lambda p: np.save(p, random_images(30, 7, 9)), r"8 rows and columns.*\(7, 9\)"),
    "grey.npy": (lambda p: np.save(p, np.ones((30, 8, 8))), "must vary, got 'one grey'"),
    "holes.npy": (lambda p: np.save(p, np.full((30, 8, 8), np.nan)), "finite values"),
    "two.npz": (
        lambda p: np.savez(p, a=random_images(), b=random_images()),
        "images is not a file",
    ),
    "folder": (lambda p: (p.mkdir(), (p / "a.png").write_text("no")), "a.png cannot be read as"),
    "empty": (lambda p: p.mkdir(), "20 images at least, got 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_no_images_is_refused_before_any_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write, message = REFUSED[name]
    write(tmp_path / name)
    with pytest.raises(ArgumentError, match=message):
        options = {"images": str(tmp_path / name), "widths": [1, 2]}
        check(Setting("quick", (0,), options, tmp_path))
    assert not (tmp_path / "touched").exists()


def test_options_are_refused_together() -> None:
    with pytest.raises(
        ArgumentError, match=r"images must name a \.npy.*widths must be two"
    ) as told:
        check(Setting("quick", (0,), {"images": 3, "widths": [4]}, Path()))
    assert "got 3" in str(told.value)


def test_spectra_and_errors_are_measured_on_the_users_images(tmp_path: Path) -> None:
    np.save(tmp_path / "mine.npy", random_images())
    options: dict[str, Any] = {"images": str(tmp_path / "mine.npy"), "widths": [1, 2, 4]}
    options |= {"width": 0, "steps": 2, "batch": 4, "learning_rate": 1e-3}
    verdict = on_images(Setting("quick", (0, 1), options, tmp_path / "work"))
    assert "20 images (mine)" in verdict.words
    for m_h in (1, 2, 4):
        found = np.array(verdict.numbers["spectra"][str(m_h)])
        assert found.shape == (2, m_h)
        assert (np.diff(found) <= 0).all()
    assert verdict.numbers["distance"]["4"] == [0, 0]
