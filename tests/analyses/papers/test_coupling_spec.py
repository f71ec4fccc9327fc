import math

import pytest
import torch

from analyses.papers.coupling.models import coupling_spec
from interp.models.kinds import build


def network(ffn: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    for layer in ffn.hidden:
        x = (x @ layer.W + layer.b).relu()
    return (x @ ffn.W_in + ffn.b_in).relu() @ ffn.W_out + ffn.b_out


@pytest.mark.parametrize("positions", ["none", "learned"])
@torch.no_grad()
def test_the_model_is_the_papers_formula(positions: str) -> None:
    spec = coupling_spec(2, 1, 5, m_h=3, n=6, width=7, positions=positions)
    model = build(spec, seed=2).double()
    for name, parameter in model.named_parameters():
        if ".b" in name:
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64))
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    attn, output = model.blocks[0].attn, model(x)
    for row in range(3):
        embedded = x[row] @ model.W_E + (model.W_pos if positions == "learned" else 0)
        features = network(model.input_ffn, embedded)
        for t in range(5):
            q = features[t] @ attn.W_Q[0] + attn.b_Q[0]
            scores = [float(q @ (f @ attn.W_K[0] + attn.b_K[0])) / math.sqrt(3) for f in features]
            weights = [math.exp(s) / sum(map(math.exp, scores)) for s in scores]
            z = sum(
                w * (f @ attn.W_V[0] + attn.b_V[0]) for w, f in zip(weights, features, strict=True)
            )
            y = network(model.blocks[0].mlp, z @ attn.W_O[0] + attn.b_O) @ model.W_U + model.b_U
            assert torch.allclose(output[row, t], y, atol=1e-10)
