"""A proof as a model: which component does what, where, and how exactly.

A :class:`Construction` is a proof written as weights: the model, its :class:`Mechanism` (ground
truth for every measurement) and a :class:`Certificate` (a number computed from the weights that
bounds the output's error for all inputs of the stated domain). A trained model may solve the same
task by another mechanism: that it differs refutes only the claim that it works in this way.

The lists (:mod:`interp.proofs.catalogue` for memories, and ``CASES`` of the depth, template and
induction proofs) are samples of what can be built, for trying a tool on many models whose mechanism
is known.

Everything that a proof does not mention must contribute nothing. A head whose values are zero and a
neuron without an output contribute exactly nothing; randomly initialised ones would not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.models.spec import TransformerSpec
from interp.models.transformer import SequenceTransformer


@dataclass(frozen=True)
class Part:
    """The job of one component of a model.

    Attributes:
        component: ``head`` or ``ffn``.
        layer: The layer, counted from 0.
        head: The head's number; None for an FFN.
        role: The role's name, e.g. ``memory-location`` or ``readout``.
        target: The latent that it computes: the memory it extracts, or the function it computes.
        lag: For a memory-location head, the lag that its group selects.
        round: For a nested memory, the sequential round in which it is extracted, counted from 1.
    """

    component: str
    layer: int
    head: int | None
    role: str
    target: str
    lag: int | None = None
    round: int | None = None


@dataclass(frozen=True)
class Mechanism:
    """Which components do what, and which residual directions hold which latents.

    Attributes:
        parts: Every component that does something.
        directions: Latent → unit vector ``[d_model]`` of the residual stream that holds it.
        written: Latent → the first hook at which that direction holds it.
    """

    parts: tuple[Part, ...]
    directions: Mapping[str, Float[Tensor, " d_model"]] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Certificate:
    """A bound on the output's error, computed from the weights.

    Attributes:
        error: The bound: |output − target| is at most this on the whole domain.
        parts: The terms that the bound is the sum of, or the margins that it depends on, by name.
        domain: A description of the inputs and positions that the bound holds for.
        error_in_any_basis: The same bound if the weights are dense and round accordingly, as after
            :func:`~interp.proofs.random_basis.random_basis`; None if it has not been derived.
    """

    error: float
    parts: Mapping[str, float]
    domain: str
    error_in_any_basis: float | None = None


@dataclass(frozen=True)
class Construction:
    """A proof written down as a model: task, weights, mechanism and certificate.

    Attributes:
        name: The task, the kind of proof and its options, as a name.
        task: The task that the model solves.
        model: The weights.
        mechanism: Which component does what.
        certificate: The bound on the error of this model.
        certify: A function that computes the certificate of any model of this shape from its
            weights, so that changed weights or a changed basis are taken into account; None if the
            bound is derived by hand.
    """

    name: str
    task: Any
    model: SequenceTransformer
    mechanism: Mechanism
    certificate: Certificate
    certify: Callable[[SequenceTransformer], Certificate] | None = None


@dataclass(frozen=True)
class Case:
    """A named construction, built on demand.

    Attributes:
        name: What the case is, with sizes and options; unique in a list.
        construct: A function that builds it, in a second or less.
        family: The family that the case belongs to: a family of tasks, or a language.
    """

    name: str
    construct: Callable[[], Construction]
    family: str = ""


def zero_model(spec: TransformerSpec) -> SequenceTransformer:
    """Return the spec's model with every parameter at zero."""
    model = SequenceTransformer(spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model
