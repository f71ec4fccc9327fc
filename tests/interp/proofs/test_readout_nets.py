"""Readout networks against the readouts themselves, inside an FFN of the model."""

import pytest
import torch

from interp.models.ffn import FFN
from interp.models.spec import TransformerSpec
from interp.proofs.memory.kernels import readout_net
from interp.tasks.memory.readouts import Readout

READOUTS = [
    Readout("single", 1),
    Readout("mean", 2),
    Readout("maximum", 1, now=False),
    Readout("maximum", 1),
    Readout("maximum", 4),
    Readout("network", 2, seed=3),
    Readout("waves", 2, frequency=3.0),
]


def ffn(d_model: int, widths: tuple[int, ...]) -> FFN:
    spec = TransformerSpec(
        input="real", d_in=1, d_out=1, n_ctx=4, d_model=d_model, n_layers=1, ffn=widths,
        dtype="float64",
    )  # fmt: skip
    made = FFN(spec, widths, widths[-1])
    for parameter in made.parameters():
        parameter.data.zero_()
    return made


@pytest.mark.parametrize("readout", READOUTS, ids=lambda r: f"{r.name}-{r.n}")
@torch.no_grad()
def test_networks_are_the_readouts_inside_their_box(readout: Readout) -> None:
    sizes = [1.0 + i for i in range(readout.n)]
    net = readout_net(readout, sizes)
    module = ffn(readout.n + 2, net.widths)
    net.write(module, range(readout.n), readout.n)
    generator = torch.Generator().manual_seed(1)
    u = torch.rand(500, readout.n, generator=generator, dtype=torch.float64) * 2 - 1
    u = u * torch.tensor(sizes)
    x = torch.cat([u, torch.zeros(500, 2, dtype=torch.float64)], dim=1)
    out = module(x)
    wanted = readout([column[None].float() for column in u.T])[0].double()
    off = float((out[:, readout.n] - wanted).abs().max())
    assert off <= net.error + 2e-6  # the readout itself is float32
    assert net.error <= 2e-3
    assert float(out[:, readout.n + 1].abs().max()) == 0
    assert 0 < net.rounding(sizes, 2.0**-53) < 1e-9
