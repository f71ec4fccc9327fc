"""Decoys that are needed for everything lose as much as they are said to, and are called so."""

import torch

from analyses.benchmarks.circuits import Sizes
from analyses.benchmarks.language import decoys
from analyses.benchmarks.needed import NEEDED, construct_needed
from analyses.benchmarks.roles import measure_language
from analyses.benchmarks.scoring import Outcome, score
from interp.tasks.induction import RepeatedTokens


def test_a_head_that_is_needed_for_everything_is_called_so() -> None:
    (one,) = [decoy for decoy in decoys(tuning=True) if decoy.needed == "copying"]
    found = measure_language(one)
    assert found["named"]
    assert not found["found"] - found["exempt"]


def test_the_loss_rises_as_much_before_a_token_comes_again_as_after() -> None:
    """Written out by hand: the head's write is set to its mean, and the loss is compared."""
    sizes = Sizes(13, 21, 3, False)
    model, exempt = construct_needed("induction", sizes, seed=4)
    ((layer, head),) = {
        (layer, head)
        for layer in range(2)
        for head in range(3)
        if ("head", layer, head, "induction", "") not in exempt
    }
    batch = RepeatedTokens(13, 21, (6, 9), bos=-1).sample(64, seed=1)

    def average_head(z: torch.Tensor, hook: object) -> torch.Tensor:
        z = z.clone()
        z[:, :, head] = z[:, :, head].mean(0)
        return z

    with torch.no_grad():
        outputs = [
            model(batch.inputs),
            model.run_with_hooks(
                batch.inputs, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", average_head)]
            ),
        ]
    clean, without = (
        torch.nn.functional.cross_entropy(output.mT, batch.targets, reduction="none")
        for output in outputs
    )
    first = ~batch.mask
    first[:, :3] = False  # nothing stands two positions before
    rises = [float((without - clean)[where].mean()) for where in (batch.mask, first)]
    assert rises[0] > 2
    assert rises[1] > 0.75 * rises[0]


def test_every_role_of_the_profile_has_such_a_decoy() -> None:
    assert {one.needed for one in decoys() if one.needed} == set(NEEDED)


def test_an_exempt_claim_does_not_take_a_decoy_for_something() -> None:
    claim = ("head", 0, 1, "copying", "")
    common = {"name": "x", "decoy": True, "truth": set(), "unscored": set(), "peers": None}
    outcomes = [
        Outcome(**common, found={claim}, exempt={claim}, named=True),
        Outcome(**common, found={claim}, exempt=set(), named=False),
    ]
    found = score(outcomes, ["copying"])
    assert (found["decoy_rate"], found["needed"], found["needed_named"]) == (0.5, 2, 0.5)
