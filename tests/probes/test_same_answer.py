"""The write that leads to the same answer by another route, against hooks of PyTorch's own."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from interp.tasks.base import Batch
from probes.roles import LANGUAGE, find_roles
from probes.roles.views import other_routes
from trained import zoo


def test_every_second_token_of_a_row_becomes_one_that_it_has_not() -> None:
    inputs = torch.stack([torch.randperm(50, generator=torch.Generator().manual_seed(i))[:12]
                          for i in range(6)]).repeat(1, 2)  # fmt: skip
    inputs = torch.cat([torch.full((6, 1), 60), inputs], 1)
    others = other_routes(inputs)
    assert torch.equal(others[:, 0], inputs[:, 0])
    for before, after in zip(inputs[:, 1:], others[:, 1:], strict=True):
        pairs = set(zip(before.tolist(), after.tolist(), strict=True))
        assert len(pairs) == 12, "a token becomes one other everywhere"
        changed = [new for old, new in pairs if new != old]
        assert len(changed) == len(set(changed)) == 6
        assert not set(changed) & set(before.tolist())
    assert torch.equal(other_routes(inputs), others), "a seed gives the same rows"


def test_what_the_write_of_the_same_answer_keeps_is_what_hooks_say() -> None:
    shipped = zoo.load("induction-attention")
    model, batch = shipped.model, shipped.task.sample(32, seed=5)
    roles = find_roles(model, batch, profile=LANGUAGE)
    row = roles[(roles["role"] == "induction") & (roles["head"] >= 0)].iloc[0]
    expected = by_hooks(model, batch, int(row["layer"]), int(row["head"]))
    assert row["same_answer"] == pytest.approx(expected, abs=0.05)


@torch.no_grad()
def by_hooks(model, batch: Batch, layer: int, head: int) -> float:
    others, name = other_routes(batch.inputs), f"blocks.{layer}.attn.hook_z"
    where = (others != batch.inputs) & (others.roll(-1, 1) == batch.targets) & batch.mask

    def loss(inputs):
        _, cache = model.run_with_cache(inputs)

        def patch_head(z, hook):
            theirs = torch.where(where[..., None], cache[name][..., head, :], z[..., head, :])
            return z.index_copy(2, torch.tensor([head]), theirs[..., None, :])

        output = model.run_with_hooks(batch.inputs, fwd_hooks=[(name, patch_head)])
        return cross_entropy(output[where], batch.targets[where])

    same_rows, other_rows = batch.inputs, batch.inputs.roll(1, 0)
    clean, other, same = loss(same_rows), loss(other_rows), loss(others)
    return float(1 - (same - clean) / (other - clean))
