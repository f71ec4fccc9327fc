"""Every p-th position: all shifts measured at once give what a loop over them gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probes.roles.selecting import Seen, closeness

ORDINALS = {2: "second", 3: "third"}


def periodic_keys(seen: Seen) -> dict[str, Tensor]:
    """Words → the keys of every period and shift, written out query by query."""
    size, found = seen.allowed.shape[-1], {}
    for period in range(2, max(3, (size + 1) // 2)):
        every = f"every {ORDINALS.get(period, f'{period}th')} position from"
        for shift in range(period):
            for own in (True, False):
                words = f"{every} {shift} after its own" if own else f"{every} {shift}"
                words = f"{every} its own" if own and not shift else words
                keys = torch.zeros(1, size, size, dtype=torch.bool)
                for query in range(size):
                    for key in range(size):
                        keys[0, query, key] = (key - own * query) % period == shift
                if not seen.begun:
                    found[words] = keys
                    continue
                for first, more in ((False, ""), (True, ", and the first position")):
                    found[words + more] = keys.clone()
                    found[words + more][..., 0] = first
    return found


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [3, 5, 8, 13])
def test_all_periods_at_once_give_what_one_at_a_time_give(begun, causal, size):
    generator = torch.Generator().manual_seed(size)
    allowed = torch.ones(size, size, dtype=torch.bool)
    allowed = allowed.tril() if causal else allowed
    for sharp in (0.0, 1.0, 8.0):
        scores = sharp * torch.randn(6, size, size, generator=generator, dtype=torch.float64)
        pattern = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        counted = torch.rand(6, size, generator=generator) < 0.8
        seen = Seen(pattern, torch.zeros(6, size).long(), counted, allowed, begun)
        mean = (pattern * counted[..., None]).sum(0) / counted.sum(0).clamp_min(1)[:, None]
        once = Seen(mean[None], seen.inputs[:1], counted.any(0)[None], allowed, begun)
        tried = periodic_keys(seen)
        close = {
            words: float(closeness(once, keys).nan_to_num(-1.0)) for words, keys in tried.items()
        }
        chosen = seen.periodic()
        assert chosen.words in tried
        assert torch.equal(chosen.selects(seen.inputs), tried[chosen.words])
        assert close[chosen.words] == pytest.approx(max(close.values()), abs=1e-6)
