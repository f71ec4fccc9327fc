"""Detect heads that count, by what their output encodes and what depends on it.

A counting head in the proofs attends evenly to all earlier positions, and its output is the share
of positions where something holds. Trained counting heads need not be even: a head whose count is
needed only at some symbols may attend anyhow elsewhere, and may write count and symbol at once. So
neither evenness nor the form of the output is tested, but:

    behaviour  a line of the task's program that depends on a count (E_k: enough have been seen)
               can be predicted from the head's output at each position by a network, and not from
               the stream that enters the layer
    cause      when its output is exchanged between rows, at all positions, the model's answers
               move to those of the program with that line exchanged (share ≥ .9), and stay where
               the program's answer stays (:func:`probes.locate.exchange_parts`)

The cause is the same interchange intervention as that of :func:`probes.locate.locate`, on other
rows, so the two can hardly disagree for this role. The lines are those that the task names; a head
that counts something else is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np

from interp.interventions.components import Component, components, hook_of
from interp.stats.nulls import correlation_interval, decodability_null
from interp.tasks.counterfactual import Variable
from probes.controls import decode_nonlinearly
from probes.linear import Decoding
from probes.roles.decision import Found, Test, holds
from probes.roles.examined import Examined, of_head
from probes.roles.exchange import exchange_tests
from probes.roles.reader import Features, Reader


def counting_roles(of: Examined) -> Iterator[Found]:
    """Test every head for computing each of the task's variables that rest on a count.

    Yields:
        One finding for each head and each such variable, whether its tests pass or not; none
        without a reader of latents, and none for a variable that the rows lack or that is constant.
    """
    reader = of.reader
    known = [variable for variable in of.sought if variable.role == "counting"]
    if reader is None or not known:
        return
    before = cache(partial(_before, reader))
    for part in components(reader.model):
        if part.kind == "head":
            for variable in known:
                found = _of(reader, part, variable, before)
                if found is not None:
                    yield found


def _of(
    reader: Reader,
    part: Component,
    variable: Variable,
    before: Callable[[int, str], float],
) -> Found | None:
    if variable.name not in reader.latents:
        return None
    floors, truth = reader.floors, reader.truth(variable.name)
    if np.ptp(truth) == 0:
        return None
    hook = hook_of(reader.model, part)
    written = reader.inside(part.layer, (hook,))[hook][:, :, part.head]
    features = reader.places.of(written).double().numpy()
    name = f"a network reads {variable.name} from its output with r²"
    least = 0.75 * floors.determined  # of one fold: four more would not make up for that
    after = _decode(reader, features, truth, least=least)
    if np.isnan(after.predicted).any():
        tests = [Test(name, after.score, floors.determined, 1.0, family="counted")]
        return _finding(part, variable, tests, [])
    p = decodability_null(after.predicted, truth).p
    low, high = correlation_interval(after.predicted, truth, seed=reader.seed)
    tests = [Test(name, after.score, floors.determined, p, low, high, "counted")]
    if holds(tests):
        known = before(part.layer, variable.name)
        gained = (after.score - known) / max(1 - known, 1e-9)
        tests.append(Test("of what the layer's input leaves open", gained, floors.readout_gain))
    if not holds(tests):
        return _finding(part, variable, tests, [])
    cause = exchange_tests(reader.evidence, (part.layer, part.head), "output", variable)
    return _finding(part, variable, tests, cause)


def _finding(part: Component, variable: Variable, tests: list[Test], cause: list[Test]) -> Found:
    strength, place = cause[0].score if cause else 0.0, (part.layer, part.head)
    return of_head(place, "counting", tests, cause, strength, target=variable.name)


def _before(reader: Reader, layer: int, latent: str) -> float:
    """Return how well (held-out r²) a network predicts a line of the program from the stream that
    enters a layer."""
    found = _decode(reader, reader.features(reader.before(layer)), reader.truth(latent))
    return found.score


def _decode(reader: Reader, features: Features, truth: Features, least: float = 0.0) -> Decoding:
    return decode_nonlinearly(features, truth, groups=reader.places.groups, least=least)
