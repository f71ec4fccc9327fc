"""The benchmark of p and q where there is nothing to find, on a few models."""

from analyses.benchmarks.calibration import calibration


def test_true_nulls_give_few_small_p() -> None:
    found = calibration(8)
    assert found["components"] == 48
    assert found["tests"] == {
        "weights": 96, "composition": 72, "decodability": 48, "patterns": 48, "ablation": 128,
        "decodability of shuffled labels": 48, "patterns of shuffled labels": 48,
        "ablation of shuffled labels": 128,
    }  # fmt: skip
    assert max(found["uniformity"].values()) < 0.25  # 48 even p are 0.24 off once in a hundred
    assert max(found["small"].values()) <= 0.07
    assert 0 <= found["fdr"] <= 0.1
    shuffled = "ablation of shuffled labels"
    assert found["small"][shuffled] <= 0.01 < found["rises"][shuffled]  # what the targets add
