"""Between two batches a model is its owner's: gradients, mode and hooks are as they were."""

import torch

from interp.models.transformer import SequenceTransformer
from interp.proofs.induction import construct_relation
from interp.store.rows import read_batches
from interp.tasks.relation import TokenRelation

TASK = TokenRelation("previous-token", "copy", symbols=6, length=9)
HOOK = "blocks.0.attn.hook_pattern"


def test_a_reading_that_is_not_finished_leaves_nothing_behind() -> None:
    model = SequenceTransformer(construct_relation(TASK).model.spec, seed=1)
    model.train()
    batch = TASK.sample(6, seed=0)
    reading = read_batches(model, batch, [HOOK], batch=2)
    first = next(reading)
    assert torch.is_grad_enabled()
    assert model.training
    assert not model.hook_dict[HOOK].fwd_hooks
    loss = model(batch.inputs).square().mean()
    loss.backward()
    assert any(weight.grad is not None for weight in model.parameters())
    rest = [rows.activations[HOOK] for rows in reading]
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, names_filter=[HOOK])
    joined = torch.cat([first.activations[HOOK], *rest])
    assert torch.allclose(joined, cache[HOOK], atol=1e-6)
