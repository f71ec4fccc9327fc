"""Detect heads that map tokens: by attending to a token a they raise the logit of f(a), for a fixed
map f of tokens.

For copying heads f is the identity:

    behaviour   what the head writes, read through the final norm and the unembedding, raises the
                attended tokens' logits above those of other rows' tokens
                (:class:`interp.attention.behaviour.Copying`)
    cause       the loss rises without the head

The direct effect leaves out what later layers compute from the output; in models of a task,
circuits are tested instead (:mod:`probes.roles.detectors.circuits`). For heads with another map:

    behaviour   f is read off every second row: the logits that the head adds directly, averaged
                over queries that attend to a, minus the mean over all attended tokens, are
                largest at f(a). On the other rows f must be the same; it must send different
                tokens to different tokens, and not to themselves; and the logits of the images of
                attended tokens must rise above those of the images of other rows' tokens
    cause       the loss rises without the head

Strength is signed: negative if the tokens, or images, are lowered. If a head's value does not
depend on the token, the map differs from one half of the rows to the other. Only tokens that occur
in both halves can be used: with a large vocabulary there are too few of them in random rows, and
the role is not tested for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from probes.roles.change import over_rows
from probes.roles.decision import Found, Lacking, Test, holds
from probes.roles.direct import Direct
from probes.roles.evidence import Evidence, Place, has_readout
from probes.roles.examined import Examined, of_head
from probes.roles.selecting import Seen

_ROLE, _KIND = "successor", "shuffled"
_FEWEST = 6
"""The least number of tokens of which a map is told."""


def copying_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test whether every head raises, or lowers, the logits of the tokens that it attends to.

    Yields:
        A finding for each head, whether its tests pass or not; or that heads' outputs cannot be
        read as logits. Nothing in a profile whose unit is not nats.
    """
    evidence = of.evidence
    if evidence.profile.unit != "nats":
        return
    for place in evidence.heads:
        raised = evidence.score(place, "copying", evidence.profile.rows["after_same"])
        if raised is None:
            words = "what heads write cannot be read as logits: no weights, or no hook_z, are there"
            yield Lacking("copying", words)
            return
        verb = "lowers" if raised.effect < 0 else "raises"
        name = f"{verb} the logits of the tokens it attends to by"
        tests = [
            Test(name, abs(raised.effect), evidence.floors.copying, raised.p, family="copying")
        ]
        cause: list[Test] | None = None
        if of.effects is not None:
            cause = of.effects.without_head(place) if holds(tests) else []
        yield of_head(place, "copying", tests, cause, raised.score)


def mapping_roles(of: Examined) -> Iterator[Found | Lacking]:
    """Test whether every head raises, or lowers, the image of the token that it attends to under a
    fixed map.

    Yields:
        A finding for each head, whether its tests pass or not; or why the role could not be tested
        for.
    """
    evidence, effects = of.evidence, of.effects
    if effects is None or not has_readout(evidence.model):
        yield Lacking(_ROLE, "no weights are named that writes could be read with as logits")
        return
    inputs = evidence.batch(_KIND).inputs
    begun = int(evidence.head_attention(evidence.heads[0], _KIND).begun)
    halves = [inputs[half::2, begun:].unique() for half in range(2)]
    tokens = halves[0][torch.isin(*halves)]
    if len(tokens) < _FEWEST:
        words = f"{len(tokens)} tokens come in both halves of the rows, and {_FEWEST} are needed"
        yield Lacking(_ROLE, words)
        return
    direct = Direct(evidence)
    for place in evidence.heads:
        found = _Mapped.of(evidence, direct, place, tokens)
        ids = torch.arange(evidence.model.W_U.shape[1])
        image = ids.index_copy(0, tokens, tokens[found.image])
        tests = found.tests(evidence)
        cause = effects.without_head(place) if holds(tests) else []
        strength, target = found.sign * tests[0].score, _words(tokens[found.image] - tokens)
        images = partial(_images, evidence, image=image)
        yield of_head(place, _ROLE, tests, cause, strength, target=target, tokens=images)


def _images(evidence: Evidence, kind: str, image: Tensor) -> Int[Tensor, "row key"]:
    """Return the images, under a map, of the tokens of rows of one kind."""
    return image[evidence.batch(kind).inputs]


@dataclass(frozen=True)
class _Mapped:
    """The map of tokens that one head implements, read off each half of the rows.

    Attributes:
        image: For every token, the index of its image among the tokens, from the first half.
        again: The same from the second half.
        sign: 1 if images are raised, −1 if they are lowered.
        rises: For each row of the second half, by how much the images of attended tokens are raised
            above those of another row's tokens, times ``sign``.
    """

    image: Int[Tensor, " token"]
    again: Int[Tensor, " token"]
    sign: int
    rises: Float[Tensor, " row"]

    @classmethod
    def of(cls, evidence: Evidence, direct: Direct, place: Place, tokens: Tensor) -> _Mapped:
        seen, logits = evidence.head_attention(place, _KIND), direct.logits(_KIND, place, tokens)
        size = int(max(evidence.batch(_KIND).inputs.max(), tokens.max())) + 1
        spot = torch.full((size,), len(tokens)).index_copy(0, tokens, torch.arange(len(tokens)))
        tables = [_table(seen.half(half), logits[half::2], spot) for half in range(2)]
        sign = 1 if float(tables[0].amax(1).mean()) >= -float(tables[0].amin(1).mean()) else -1
        image, again = ((sign * table).argmax(1) for table in tables)
        own, other = (
            _image_logits(seen.half(1), sign * logits[1::2], at, image)
            for at in (spot[seen.inputs[1::2]], spot[seen.inputs[1::2].roll(1, 0)])
        )
        return cls(image, again, sign, own - other)

    def tests(self, evidence: Evidence) -> list[Test]:
        floors, count = evidence.floors, len(self.image)
        verb = "raises" if self.sign > 0 else "lowers"
        same = float((self.image == self.again).double().mean())
        other = float((self.image != torch.arange(count)).double().mean())
        shares = {
            "tokens whose image is the same on other rows": same,
            "images that are one token's alone": len(self.image.unique()) / count,
            "tokens whose image is another": other,
        }
        rises = over_rows(self.rises.numpy())
        name = f"{verb} the logits of the images of the tokens it attends to by"
        return [
            rises.test(name, floors.copying, "mapped"),
            *(Test(words, share, floors.mapped) for words, share in shares.items()),
        ]


def _table(
    seen: Seen, logits: Float[Tensor, "row query token"], spot: Int[Tensor, " id"]
) -> Float[Tensor, "token token"]:
    """Return the mean logits that a head adds where each token is attended to, minus the mean over
    attended tokens."""
    count = logits.shape[-1]
    weight = seen.pattern.double() * seen.counted[..., None]
    at = torch.nn.functional.one_hot(spot[seen.inputs], count + 1)[..., :count].double()
    attended = torch.einsum("rqk,rka->rqa", weight, at)
    table = torch.einsum("rqa,rqb->ab", attended, logits)
    table = table / attended.sum((0, 1)).clamp_min(1e-9)[:, None]
    return table - table.mean(0)


def _image_logits(
    seen: Seen, logits: Float[Tensor, "row query token"], at: Tensor, image: Tensor
) -> Float[Tensor, " row"]:
    """Return, for each row, the mean over queries of the logit added to the images of the attended
    tokens.

    ``at`` gives the index of the token at each key.
    """
    count = logits.shape[-1]
    centred = logits - logits.mean(-1, keepdim=True)
    known = at < count
    images = image[at.clamp_max(count - 1)]
    of_keys = centred.gather(2, images[:, None].expand(-1, logits.shape[1], -1))
    weight = seen.pattern.double() * known[:, None]
    rows = (weight * of_keys).sum(-1) * seen.counted
    return rows.sum(1) / seen.counted.sum(1).clamp_min(1)


def _words(steps: Int[Tensor, " token"]) -> str:
    """Return ``+1`` if, for nearly all tokens, the image is the token with the next number (``−2``
    and so on for other steps); else ``map``."""
    step = steps.mode().values
    if float((steps == step).double().mean()) < _REGULAR:
        return "map"
    return f"+{int(step)}" if step > 0 else f"−{-int(step)}"


_REGULAR = 0.85
"""The least share of tokens whose image is the same step away; the last ones' may begin again."""
