"""The stream before a layer, taken from a kept pass or computed again, is what the hook shows."""

from pathlib import Path

import pytest
import torch

from interp.models.export import export_gpt2
from interp.models.pretrained import load_pretrained
from probes.roles.runs import HELD, Runs
from trained import zoo


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("bridge", [True, False])
def test_streams_are_those_of_the_hook(kept: bool, bridge: bool, tmp_path: Path) -> None:
    shipped = zoo.load("induction-attention")
    batch = shipped.task.sample(70, seed=1)
    model = shipped.model
    if bridge:
        model = load_pretrained(export_gpt2(model, tmp_path / "model", bos=0)).model
    runs, ran = Runs(model, batch, room=HELD if kept else 0), []
    for layer in range(2):
        hook = f"blocks.{layer}.hook_resid_pre"
        _, cache = model.run_with_cache(batch.inputs, names_filter=[hook])
        handle = next(model.children()).register_forward_hook(lambda *_: ran.append(1))
        found = list(runs.entering(layer))
        handle.remove()
        assert [rows.start for rows, _ in found] == [rows.start for rows in runs.blocks()]
        torch.testing.assert_close(torch.cat([s for _, s in found]), cache[hook], atol=0, rtol=0)
    assert bool(ran) != kept, "with streams in memory nothing is run"
