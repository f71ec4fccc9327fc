"""Readout networks against the readouts themselves, inside an FFN of the model."""

import pytest
import torch

from interp.models.ffn import FFN
from interp.models.spec import TransformerSpec
from interp.proofs.memory.fixed import CornerTable
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


@torch.no_grad()
def test_tables_remove_errors_below_the_margin_and_what_stood_in_their_slot() -> None:
    values = {(-1, -1): 2.0, (-1, 1): 5.0, (1, -1): 2.0, (1, 1): 3.0}
    table, slot = CornerTable(values), 2
    module = ffn(4, (table.neurons,))
    table.write(module, [0, 1], slot, 0)
    generator = torch.Generator().manual_seed(2)
    for corner, f in values.items():
        errors = (torch.rand(200, 2, generator=generator, dtype=torch.float64) - 0.5) * 0.499
        stood = torch.randn(200, 1, generator=generator, dtype=torch.float64)
        x = torch.cat([torch.tensor(corner) + errors, stood, stood * 0], dim=1)
        held = (x + module(x))[:, slot]
        assert float((held - f).abs().max()) <= table.rounding(2.0**-53) + 1e-15
    too_far = torch.tensor([[1 - 0.8, 1.0, 0.0, 0.0]], dtype=torch.float64)
    assert abs(float((too_far + module(too_far))[0, slot]) - 3.0) > 0.1
