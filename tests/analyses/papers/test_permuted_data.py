from pathlib import Path

import numpy as np
import pytest
import torch

from analyses.papers.coupling.tasks import PermutedPatches, PermutedTranslation
from interp.errors import ArgumentError
from interp.tasks.catalogue import task_from_dict


def test_patches_are_the_images_pieces_in_the_fixed_order() -> None:
    plain, permuted = PermutedPatches(), PermutedPatches(permuted=True)
    rows, moved = plain.sample(6, seed=3), permuted.sample(6, seed=3)
    assert rows.inputs.shape == (6, 17, plain.d_in) == (6, 17, 17)
    for t, patch in enumerate(permuted.order().tolist()):
        assert torch.equal(moved.inputs[:, t], rows.inputs[:, patch])
        assert moved.latents["patch"][0, t] == patch
    assert sorted(permuted.order().tolist()) == list(range(16)) != permuted.order().tolist()
    assert rows.mask.nonzero()[:, 1].tolist() == [16] * 6
    assert torch.equal(rows.targets[:, 16], moved.latents["label"][:, 16])
    assert rows.inputs[:, -1, :-1].abs().max() == 0 != rows.inputs[:, -1, -1].min()


def test_noiseless_shapes_differ_by_class() -> None:
    batch = PermutedPatches(noise=0.0).sample(400, seed=0)
    filled = (batch.inputs[:, :-1, :-1] > 0).float().sum((1, 2))
    label = batch.targets[:, -1]
    mean = [float(filled[label == c].mean()) for c in range(4)]
    assert mean[2] > mean[0] > mean[1]  # square over disk over ring
    assert set(label.tolist()) == {0, 1, 2, 3}


def write_cifar(folder: Path, n: int) -> np.ndarray:
    records = np.random.default_rng(0).integers(0, 256, (n, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    for i in range(1, 6):
        records[i - 1 :: 5].tofile(folder / f"data_batch_{i}.bin")
    records[:2].tofile(folder / "test_batch.bin")
    return records


def test_cifar_is_read_from_its_binary_version(tmp_path: Path) -> None:
    records = write_cifar(tmp_path, 10)
    task = PermutedPatches(str(tmp_path), side=32, patch=8, split="test")
    batch = task.sample(5, seed=0)
    assert batch.inputs.shape == (5, 17, 193)
    first = {int(r[0]): r[1:].reshape(3, 32, 32) for r in records[:2]}
    for row in range(5):
        image = first[int(batch.targets[row, -1])]
        corner = torch.from_numpy(image[:, :8, 8:16].copy()).float().flatten() / 127.5 - 1
        assert torch.allclose(batch.inputs[row, 1, :-1], corner)


def test_damaged_or_missing_cifar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"side must be 32.*holds data_batch_1.bin"):
        PermutedPatches(str(tmp_path))
    write_cifar(tmp_path, 10)
    (tmp_path / "test_batch.bin").write_bytes(b"\x0b" + bytes(3072))
    with pytest.raises(ArgumentError, match="a label below 10 and 3072 pixels"):
        PermutedPatches(str(tmp_path), side=32, split="test").sample(1, seed=0)


def test_translation_puts_adjectives_behind_nouns() -> None:
    task = PermutedTranslation(words=6, length=5, permuted=True)
    batch = task.sample(30, seed=1)
    lexicon, order = task.lexicon().tolist(), task.order().tolist()
    assert batch.inputs.shape == (30, task.positions) == (30, 11)
    for row in range(30):
        tokens = batch.inputs[row].tolist()
        source = [0] * 5
        for place, position in enumerate(order):
            source[position] = tokens[place] - 4
        expected, t = [], 0
        while t < 5:
            if source[t] >= 3:  # an adjective, and a noun follows
                expected += [source[t + 1], source[t]]
                t += 2
            else:
                expected.append(source[t])
                t += 1
        translated = [lexicon[word] + 4 + 6 for word in expected] + [2]
        assert batch.targets[row, 5:].tolist() == translated
        assert tokens[5] == 3
        assert batch.mask[row].nonzero()[:, 0].tolist() == list(range(5, 11))
        for t in range(5):
            place = int(batch.latents["alignment"][row, 5 + t])
            assert lexicon[tokens[place] - 4] + 10 == translated[t]


def test_the_users_text_is_read_by_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the cat\nthe dog runs\n" * 6)
    (tmp_path / "b").write_text("die katze\nder hund rennt\n" * 6)
    files = {"source": str(tmp_path / "a"), "target": str(tmp_path / "b")}
    task = PermutedTranslation(**files, words=3, length=3)
    batch = task.sample(20, seed=0)
    # Pairs 0 and 10 are held out: kept are the, dog, runs and der, hund, rennt.
    short, long = [4, 1, 0, 3, 1, 1, 2], [4, 5, 6, 3, 7, 8, 9]
    for row, scored in zip(batch.inputs.tolist(), batch.mask.tolist(), strict=True):
        assert row in (short, long)
        assert scored == [False] * 3 + [True] * 3 + [row == long]
    assert task_from_dict(task.to_dict()) == task
    (tmp_path / "b").write_text("die katze\n")
    with pytest.raises(ArgumentError, match=r"as many lines as source 12, got 1"):
        PermutedTranslation(**files, words=4, length=3).sample(1, seed=0)


def test_refusals() -> None:
    with pytest.raises(ArgumentError, match="patch must divide a side"):
        PermutedPatches(patch=5)
    with pytest.raises(ArgumentError, match=r"target must be given with source.*text file"):
        PermutedTranslation(source="nowhere")


def test_permuted_pixels_are_the_same_pixels_elsewhere() -> None:
    plain, turned = PermutedPatches(), PermutedPatches(permuted=True, pixels=True)
    own, other = (task.sample(5, seed=3) for task in (plain, turned))
    assert torch.equal(own.targets, other.targets)
    whole, mixed = (b.inputs[:, :-1, :-1].flatten(1) for b in (own, other))
    assert torch.equal(whole.sort(1).values, mixed.sort(1).values)
    spread = [p.inputs[0, :-1, :-1].std(1).mean() for p in (own, other)]
    assert spread[1] > spread[0], "a patch of the image is smoother than one of strange pixels"
    with pytest.raises(ArgumentError, match="pixels has no effect without permuted"):
        PermutedPatches(pixels=True)
