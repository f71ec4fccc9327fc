import numpy as np
import pytest
import torch

from interp.errors import ArgumentError
from interp.weights.metrics import effective_rank
from interp.weights.spectrum import HeadSpectra, VectorMoments, metric_spectrum
from interp.weights.spectrum_table import _rotations, spectrum_table


def spectra_of(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> HeadSpectra:
    vectors = [(VectorMoments.of([q]), VectorMoments.of([k])) for q, k in pairs]
    width = pairs[0][0].shape[-1]
    metric = np.stack([metric_spectrum(q, k, scale=width**-0.5) for q, k in vectors])
    return HeadSpectra({}, {0: metric}, {0: vectors})


def test_aligned_heads_stand_out_and_unrelated_ones_do_not() -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([8.0, 4, 2, 1, 0.5, 0.25])
    draw = lambda: torch.randn(4000, 6, generator=generator)  # noqa: E731
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
    aligned = (draw() * scale, draw() * scale)
    opposed = (draw() * scale, draw() * scale.flip(0))
    unrelated = (draw() * scale, draw() * scale @ turn)
    table = spectrum_table(spectra_of([aligned, opposed, unrelated]), draws=200)
    rank = table[table["metric"] == "effective_rank"].set_index("head")
    assert rank.loc[0, "effect"] < 0 < rank.loc[1, "effect"]
    assert rank.loc[0, "effect"] < -rank.loc[0, "null_std"]
    assert rank.loc[1, "p"] == 1 / 2000  # far out: the least that two hundred draws support
    assert set(table["draws"]) == {200}
    assert rank.loc[2, "p"] > 0.05
    expected = float(effective_rank((scale**2).numpy().astype(float)))
    assert rank.loc[0, "score"] == pytest.approx(expected, rel=0.05)
    assert rank["null_mean"].std() < 0.1  # the same spectra on both sides: the same null


def test_isotropic_keys_leave_nothing_to_find_and_one_draw_is_refused() -> None:
    q = torch.randn(50, 1, generator=torch.Generator().manual_seed(1))
    table = spectrum_table(spectra_of([(q, q)]))
    assert table["p"].tolist() == [1, 1]
    assert table["draws"].tolist() == [1000, 1000]
    assert table["effect"].tolist() == pytest.approx([0, 0])
    with pytest.raises(ArgumentError, match="draws must be at least 2"):
        spectrum_table(spectra_of([(q, q)]), draws=1)


def test_rotations_are_orthogonal_and_uniform() -> None:
    """Entries of a uniformly random rotation have mean 0 and second and fourth moments 1/n and
    3/(n(n + 2)); without the signs of QR their diagonal would lean to one side."""
    drawn = _rotations(4, 4000, np.random.default_rng(2))
    eye = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(drawn @ drawn.mT, eye.expand(4000, 4, 4))
    assert float(drawn.mean(0).abs().max()) < 0.04
    torch.testing.assert_close(drawn.square().mean(0), eye * 0 + 1 / 4, atol=0.02, rtol=0)
    torch.testing.assert_close((drawn**4).mean(0), eye * 0 + 1 / 8, atol=0.02, rtol=0)
