"""How well a model does at each scored position: the loss, a logit difference, or a function.

    Loss()              next-token targets: nats; real targets: squared error     more is worse
    LogitDifference(k)  logit of the target − logit of token k                    less is worse
    Change()            |output − clean output|², whatever the target             more is worse
    Wrong()             1 where another token than the target has the most logit  more is worse
    any function        (outputs [place, output], targets [place, …]) → [place]

A *place* is a scored position of a row. Outputs exist at places alone, some at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import ArgumentError, Problems, refuse_unless
from interp.run.edits import Array
from interp.run.gate import need_outputs


@dataclass(frozen=True)
class Places:
    """Some scored positions of some rows.

    Attributes:
        rows, positions: The row and the position of each place, ``[place]``; rows are indices into
            the run's rows.
        targets: The target of each place, ``[place(, output)]``.
    """

    rows: Tensor
    positions: Tensor
    targets: Tensor

    def __getitem__(self, some: slice) -> Places:
        """Return a slice of the places."""
        return Places(self.rows[some], self.positions[some], self.targets[some])


@dataclass(frozen=True)
class Metric:
    """A number at each place, computed from the model's output there. Subclasses define it."""

    @property
    def name(self) -> str:
        """The metric's name in tables."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in type(self).__name__)[1:]

    @property
    def loss_name(self) -> str:
        """The table's name for a change of this metric for the worse, such as ``loss_increase``."""
        return f"{self.name}_{'increase' if self.worse > 0 else 'decrease'}"

    @property
    def worse(self) -> int:
        """1 if a larger number means that the model does worse, −1 if a smaller one does."""
        return 1

    @property
    def compares(self) -> bool:
        """Whether the metric also needs the clean output, that of the unedited run."""
        return False

    def at(self, output: Float[Tensor, "_ output"], places: Places, clean: Tensor | None) -> Tensor:
        """Return the metric at each place, ``[place, …]``, in double precision.

        Args:
            output: The outputs of a run, edited or not, ``[place, output]``, on the model's device.
            places: The places that the outputs belong to.
            clean: The outputs of the unedited run at the same places, for metrics that compare with
                them.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Loss(Metric):
    """The cross-entropy in nats for token targets, or the squared error (mean over channels) for
    real ones.

    The exponentials are computed in the output's precision (at least single), their logarithm in
    double.
    """

    def at(self, output: Tensor, places: Places, clean: Tensor | None) -> Tensor:  # noqa: D102
        targets = places.targets.to(output.device)
        if targets.is_floating_point():
            return (output.double() - targets.double()).square().mean(-1)
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        largest = output.detach().amax(-1, keepdim=True)
        total = (output - largest).exp_().sum(-1).double().log() + largest[..., 0].double()
        _need_outputs("targets", targets, output)
        return total - output.gather(-1, targets.long()[:, None])[:, 0].double()


@dataclass(frozen=True)
class LossOfOthers(Metric):
    """The loss against the targets of several other rows, ``[place, other]``: a null for the loss.

    Attributes:
        targets: The targets of the other rows, ``[other, pos(, output)]``.
    """

    targets: Array

    def at(self, output: Tensor, places: Places, clean: Tensor | None) -> Tensor:  # noqa: D102
        others = self.targets.tensor.transpose(0, 1)[places.positions].to(output.device)
        if others.is_floating_point():
            return (output.double()[:, None] - others.double()).square().mean(-1)
        first = Loss().at(output, Places(places.rows, places.positions, others[:, 0]), None)
        picked = output.gather(-1, others.long()).double()
        return first[:, None] + picked[:, :1] - picked


@dataclass(frozen=True)
class LogitDifference(Metric):
    """The logit of the target minus that of another token.

    Attributes:
        against: The id of the other token: one for all places, or ``[row, pos]``.
    """

    against: int | Array | Tensor

    def __post_init__(self) -> None:
        if isinstance(self.against, Tensor):
            object.__setattr__(self, "against", Array(self.against))

    @property
    def worse(self) -> int:  # noqa: D102
        return -1

    def at(self, output: Tensor, places: Places, clean: Tensor | None) -> Tensor:  # noqa: D102
        other = torch.full_like(
            places.targets, self.against if isinstance(self.against, int) else 0
        )
        if isinstance(self.against, Array):
            least = int(places.rows.max()) + 1, int(places.positions.max()) + 1
            wide = self.against.tensor.ndim == 2 and all(
                n <= size for n, size in zip(least, self.against.tensor.shape, strict=True)
            )
            rule, advice = "must be a token a place [row, pos] of the batch", "shape it as targets"
            refuse_unless(wide, "against", rule, self.against.tensor, advice)
            other = self.against.tensor[places.rows, places.positions]
        ids = torch.stack((places.targets, other), -1).to(output.device).long()
        _need_outputs("LogitDifference", ids, output)
        right, wrong = output.gather(-1, ids).double().unbind(-1)
        return right - wrong


@dataclass(frozen=True)
class Change(Metric):
    """The squared distance of the output from the clean output; it need not be for the worse."""

    @property
    def compares(self) -> bool:  # noqa: D102
        return True

    def at(self, output: Tensor, places: Places, clean: Tensor | None) -> Tensor:  # noqa: D102
        against = output.detach() if clean is None else clean
        return (output.double() - against.double()).square().sum(-1)


@dataclass(frozen=True)
class Wrong(Metric):
    """The error rate: 1 where the target does not have the largest logit, otherwise 0."""

    def at(self, output: Tensor, places: Places, clean: Tensor | None) -> Tensor:  # noqa: D102
        return (output.argmax(-1) != places.targets.to(output.device)).double()


@dataclass(frozen=True)
class _Function(Metric):
    function: Callable[[Tensor, Tensor], Tensor]

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "metric").replace("<lambda>", "metric")

    def at(self, output: Tensor, places: Places, clean: Tensor | None) -> Tensor:
        try:
            found = self.function(output, places.targets.to(output.device))
        except TypeError as error:
            raise ArgumentError(
                "metric must be a function of outputs [place, output] and targets [place], got "
                f"{self.name}, which stops: {error}"
            ) from error
        if not isinstance(found, Tensor) or found.shape[:1] != output.shape[:1]:
            shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ArgumentError(
                f"metric must give a number for each of {len(output)} places, got "
                f"{shown} of {self.name}: reduce outputs [place, output] to [place]"
            )
        return found.double()


def _need_outputs(name: str, ids: Tensor, output: Tensor) -> None:
    """Refuse token ids beyond the outputs, for models that do not say how many they have."""
    problems = Problems("metric")
    need_outputs(problems, name, ids, output.shape[-1])
    problems.raise_if_any()


def as_metric(metric: Any) -> Metric:
    """Return a metric unchanged, or turn a function of outputs and targets into one (more is
    worse).

    Raises:
        ArgumentError: if it is neither.
    """
    rule, advice = "must be a Metric or a function of outputs and targets", "such as pl.run.Loss()"
    refuse_unless(isinstance(metric, Metric) or callable(metric), "metric", rule, metric, advice)
    return metric if isinstance(metric, Metric) else _Function(metric)
