"""Train several models of the same shape at once, as a stack.

All weights are one matrix ``[member, weight]``; a member's parameters are views of its row, and the
model is called on all rows at once (``torch.func.vmap``). Losses of different members do not mix,
so each gets the gradient that it would get alone; clipping, AdamW, schedules and early stops act
row by row. Floating-point sums may be ordered differently than for one model alone: gradients agree
up to rounding, and long runs may then diverge if training itself is unstable. A parameter without
any effect, such as a key bias under a softmax, has only rounding errors for a gradient, which AdamW
scales up: it changes at random.

Not for models whose matrix products use the whole machine: a stack of those is slower than training
one after another.

*Rows* are drawn by the task's own sampler from seeds alone. Fresh rows are drawn in blocks of many
steps at once, because a sampler's fixed cost is often more than the step itself. A block's seed
follows from (seed, block), so any step can be drawn without the ones before it. A fixed set of rows
is drawn once and read in epochs, each in a different order; an epoch that ends inside a batch is
followed by the next one there.

*Which runs share a stack.* Runs share a stack if their models differ only in numbers: initial
weights, learning rates, seeds, tasks of equal shapes, and the settings of the identity scalars. The
stack has a·XXᵀ and b (`template` §2.2) if any of its members has them, and holds them at zero in
the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from math import cos, pi
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from interp.errors import ArgumentError, need
from interp.models.kinds import build
from interp.models.spec import TransformerSpec
from interp.tasks.base import Batch, Task
from trained.metrics import mean_loss
from trained.recording import Repeated
from trained.run import Training, TrainingRun

_BLOCK_ROWS = 1024
_SET = 2**62  # the fixed set's block number


class TrainingRows:
    """The batches of one training run.

    Args:
        task: The task from which rows are drawn.
        training: Batch size, seed, and how many rows there are.
    """

    def __init__(self, task: Task, training: Training) -> None:
        self.task, self.training = task, training
        self.steps = max(1, _BLOCK_ROWS // training.batch)
        """How many steps' rows are drawn at once, as one block."""
        self._set = training_set(task, training) if training.rows else None

    def block(self, number: int) -> Batch:
        """Return the rows of steps ``number · steps`` to ``(number + 1) · steps``, without
        latents."""
        rows = self.steps * self.training.batch
        if self._set is not None:
            batch, order = self._set, self._order(number * rows, rows)
            drawn = Batch(batch.inputs[order], batch.targets[order], batch.mask[order])
        else:
            drawn = self.task.sample(rows, seed=_seed(self.training.row_seed, number))
        rule, advice = "must score some position", "its mask is empty"
        need(f"task {self.task.name}", bool(drawn.mask.any()), "mask", rule, False, advice)
        return drawn

    def _order(self, start: int, count: int) -> Tensor:
        """Return which rows of the fixed set are at positions ``start`` and following of its
        endless shuffled repetition."""
        size = self.training.rows
        first, last = start // size, (start + count - 1) // size
        epochs = [self._epoch_order(epoch) for epoch in range(first, last + 1)]
        return torch.cat(epochs)[start - first * size :][:count]

    def _epoch_order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(_seed(self.training.row_seed, _SET + 1 + epoch))
        return torch.randperm(self.training.rows, generator=generator)


def training_set(task: Task, training: Training) -> Batch:
    """Return the fixed set of rows for training, if ``training.rows`` asks for one."""
    return task.sample(training.rows, seed=_seed(training.row_seed, _SET))


def _seed(seed: int, number: int) -> int:
    """Return a seed for every pair (seed, number), never equal to one that the evaluation uses."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 2)


_PROBE_ROWS = 2
_WITHOUT: dict[str, Any] = {
    "identity_qk": False,
    "identity_ov": False,
    "identity_mask_self": False,
    "identity_multiplier": 1.0,
}


def groups(runs: Sequence[TrainingRun]) -> list[list[int]]:
    """Return the indices of the runs, one list for each stack that could be formed, in order of
    appearance."""
    found: dict[Any, list[int]] = {}
    for index, run in enumerate(runs):
        found.setdefault(shape_of(run), []).append(index)
    return list(found.values())


def shape_of(run: TrainingRun) -> tuple[Any, ...]:
    """Return a key that is equal for runs that can be trained together as one stack.

    It consists of the model's spec (apart from its identity scalars), steps, batch size, autocast,
    and the shapes and dtypes of the task's rows.
    """
    training = run.training
    spec: Any = run.spec
    if isinstance(spec, TransformerSpec):
        spec = replace(spec, **_WITHOUT)
    batch = run.task.sample(_PROBE_ROWS, seed=0)
    return (
        spec,
        getattr(run.spec, "identity_mask_self", False),
        training.steps,
        training.batch,
        training.autocast,
        tuple(batch.inputs.shape[1:]),
        tuple(batch.targets.shape[1:]),
        str(batch.inputs.dtype),
        str(batch.targets.dtype),
    )


def common_spec(specs: Sequence[Any]) -> Any:
    """Return the spec of a stack, which has every parameter that any of its members has."""
    first = specs[0]
    if not isinstance(first, TransformerSpec):
        return first
    qk, ov = (any(getattr(s, name) for s in specs) for name in ("identity_qk", "identity_ov"))
    return replace(first, identity_qk=qk, identity_ov=ov, identity_multiplier=1.0)


def multipliers(specs: Sequence[Any]) -> torch.Tensor:
    """Return the factor on each member's identity scalars, ``[member]``."""
    return torch.tensor([getattr(spec, "identity_multiplier", 1.0) for spec in specs])


_EPS = 1e-8
_SMOOTHING = 0.98
_MULTIPLIER = "multiplier"
_WORTH = 200
"""Least number of steps left for which a step is recorded for replay. The first recording of a
process takes about a second, which fewer steps would not repay."""


@dataclass
class State:
    """The state of a training: everything that the next step depends on.

    Attributes:
        step: The number of steps that are done.
        weights, first, second: The weights and AdamW's two moments, ``[member, weight]``.
        smooth: The smoothed training loss, ``[member]``.
        alive: False for a member that has stopped early or diverged, ``[member]``.
        taken: The number of steps of each member until then, ``[member]``; a step whose loss is NaN
            or infinite counts as the last one.
        losses: The training loss of each step so far, one ``[member]`` tensor per step.
        snapshots: Step → the weights after it.
    """

    step: int
    weights: Tensor
    first: Tensor
    second: Tensor
    smooth: Tensor
    alive: Tensor
    taken: Tensor
    losses: list[Tensor] = field(default_factory=list)
    snapshots: dict[int, Tensor] = field(default_factory=dict)


class Ensemble:
    """Runs of one shape (:func:`shape_of`), trained together.

    Args:
        runs: The members, which have equal numbers of steps and equal batch sizes.
        device: The torch device to compute on, such as ``cpu`` or ``cuda``.
    """

    def __init__(self, runs: Sequence[TrainingRun], *, device: str = "cpu") -> None:
        self.runs, self.device = list(runs), device
        self.trainings = [run.training for run in runs]
        self.steps, self.batch = self.trainings[0].steps, self.trainings[0].batch
        models = [initial_model(run) for run in runs]
        self.model = build(common_spec([run.spec for run in runs])).to(device).train()
        named = dict(self.model.named_parameters())
        every = list(self.model.named_parameters(remove_duplicate=False))
        self._tied = len(every) > len(named)  # to look for tied weights takes time at every call
        self.shapes = {name: p.shape for name, p in named.items()}
        self.sizes = [p.numel() for p in named.values()]
        weights = torch.stack([self._row(model) for model in models]).to(device)
        zeros = torch.zeros_like(weights)
        ones = torch.ones(len(runs), device=device)
        self.state = State(0, weights, zeros, zeros.clone(), 0 * ones, ones > 0, 0 * ones.long())
        self._set_rates(models)
        self._scales = self._identity_scales()
        self._rows = [TrainingRows(run.task, run.training) for run in runs]
        self._block: tuple[int, tuple[Tensor, ...]] | None = None
        self._repeated: Repeated | None = None

    def run(self, *, until: int | None = None) -> Iterator[int]:
        """Train all members up to step ``until`` (by default to the end).

        Training ends earlier once every member has stopped or diverged.

        Yields:
            After each step, the number of steps done so far.
        """
        until = self.steps if until is None else until
        while self.state.step < until and self._goes_on():
            self._step()
            yield self.state.step

    def models(self) -> list[Any]:
        """Return the members as models of their own spec, on the CPU and in evaluation mode."""
        return [self.model_of(i, self.state.weights) for i in range(len(self.runs))]

    def model_of(self, member: int, weights: Tensor) -> Any:
        """Return one member's model, with its row of ``weights``."""
        model = build(self.runs[member].spec)
        parts = torch.split(weights[member].cpu(), self.sizes)
        row = dict(zip(self.shapes, parts, strict=True))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(row[name].view(self.shapes[name]))
        return model

    def _goes_on(self) -> bool:
        return self.state.step % 16 != 0 or bool(self.state.alive.any())

    def _row(self, model: Any) -> Tensor:
        """Return a member's weights as one row; zero for parameters that it does not have."""
        own = {name: p.detach() for name, p in model.named_parameters()}
        dtype = next(iter(own.values())).dtype
        parts = [own.get(n, torch.zeros(s, dtype=dtype)).flatten() for n, s in self.shapes.items()]
        return torch.cat(parts)

    def _set_rates(self, models: Sequence[Any]) -> None:
        """Set the peak learning rate (0 where a weight is not trained) and weight decay of each
        weight."""
        rates, decays = [], []
        for run, model in zip(self.runs, models, strict=True):
            trained = _trained_parameters(model, run.training)
            rate, decay = [], []
            for name, size in zip(self.shapes, self.sizes, strict=True):
                term = ".terms." in name
                multiple = run.training.terms_learning_rate if term else 1.0
                peak = run.training.learning_rate * multiple * (name in trained)
                rate.append(torch.full((size,), peak, dtype=torch.float64))
                lost = 0.0 if term else run.training.weight_decay
                decay.append(torch.full((size,), lost, dtype=torch.float64))
            rates.append(torch.cat(rate))
            decays.append(torch.cat(decay))
        like = self.state.weights
        self._rates = torch.stack(rates).to(like)
        peak_decays = torch.stack(rates) * torch.stack(decays)
        self._decays = peak_decays.to(like) if bool(peak_decays.any()) else None
        self._frozen = self._rates == 0 if bool((self._rates == 0).any()) else None
        clips = [t.clip for t in self.trainings]
        self._clip = torch.tensor(clips, dtype=torch.float64).to(like)[:, None]
        self._betas = torch.tensor([t.betas for t in self.trainings], dtype=torch.float64)
        self._beta = self._betas.to(like)
        self._stop = torch.tensor([t.stop_at for t in self.trainings]).to(self.state.smooth)

    def _identity_scales(self) -> dict[str, Tensor]:
        """Return the multipliers of the identity scalars a and b, which are buffers, for each
        member."""
        values = multipliers([run.spec for run in self.runs])
        return {
            name: values.to(buffer)
            for name, buffer in self.model.named_buffers()
            if name.split(".")[-1] == _MULTIPLIER
        }

    def _step(self) -> None:
        state, weights = self.state, self.state.weights
        losses, gradient = self._gradient(weights, self._batch(state.step))
        losses = losses.to(torch.float32, copy=True)
        state.taken += state.alive
        state.alive &= torch.isfinite(losses)
        self._update(gradient)
        kept = _SMOOTHING if state.step else 0.0
        state.smooth = torch.lerp(losses, state.smooth, kept)
        state.losses.append(losses)
        state.step += 1
        state.alive &= ~((state.smooth <= self._stop) & (self._stop > 0) & (state.step >= 50))
        every = self.trainings[0].snapshots
        if every and state.step % every == 0:
            state.snapshots[state.step] = weights.cpu().clone()

    def _gradient(self, weights: Tensor, batch: tuple[Tensor, ...]) -> Sequence[Tensor]:
        """Return the members' losses and their gradient; in long trainings on a CPU the computation
        is recorded and replayed."""
        known = self._repeated
        if known is None or known.inputs[0] is not weights:
            if not weights.is_cpu or self.steps - self.state.step < _WORTH:
                return self._loss_and_gradient(weights, batch)
            inputs = tuple(part.clone() for part in batch)
            compute = partial(self._loss_and_gradient, weights, inputs)
            known = self._repeated = Repeated(compute, (weights, *inputs))
        for there, part in zip(known.inputs[1:], batch, strict=True):
            there.copy_(part)
        return known()

    def _loss_and_gradient(
        self, weights: Tensor, batch: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        weights.requires_grad_(True)
        losses = self._losses(weights, *batch)
        (gradient,) = torch.autograd.grad(losses.sum(), weights)
        weights.requires_grad_(False)
        return losses.detach(), gradient

    def _losses(self, weights: Tensor, inputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        parts = torch.split(weights, self.sizes, dim=1)
        named = {
            name: part.view(len(weights), *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }
        kind = torch.device(self.device).type
        with torch.autocast(kind, torch.bfloat16, enabled=self.trainings[0].autocast):
            if len(weights) == 1:
                alone = {name: value[0] for name, value in (named | self._scales).items()}
                output = self._call(alone, inputs[0])[None]
            else:
                output = vmap(self._call)(named | self._scales, inputs)
        return mean_loss(output.float() if output.dtype.itemsize < 4 else output, targets, mask)

    def _call(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        output: Tensor = functional_call(self.model, parameters, (inputs,), tie_weights=self._tied)
        return output

    def _batch(self, step: int) -> tuple[Tensor, ...]:
        """Return the inputs, targets and mask of a step, ``[member, batch, …]``."""
        number, place = divmod(step, self._rows[0].steps)
        if self._block is None or self._block[0] != number:
            self._block = number, self._draw(number)
        start = place * self.batch
        return tuple(part[:, start : start + self.batch] for part in self._block[1])

    def _draw(self, number: int) -> tuple[Tensor, ...]:
        """Draw a block of all members' rows; members with the same rows share one draw."""
        drawn: dict[Any, Any] = {}
        for rows in self._rows:
            key = (rows.task, rows.training.row_seed, rows.training.rows)
            if key not in drawn:
                drawn[key] = rows.block(number)
        blocks = [drawn[r.task, r.training.row_seed, r.training.rows] for r in self._rows]
        return tuple(
            torch.stack([getattr(block, name) for block in blocks]).to(self.device)
            for name in ("inputs", "targets", "mask")
        )

    @torch.no_grad()
    def _update(self, gradient: Tensor) -> None:
        """Clip the gradient and apply AdamW, row by row; members that stopped early do not
        change."""
        state, alive = self.state, self.state.alive[:, None]
        if self._frozen is not None:
            gradient.masked_fill_(self._frozen, 0.0)
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        gradient = gradient * (self._clip / (norm + 1e-6)).clamp(max=1.0)
        if not alive.is_cpu or not bool(alive.all()):  # a GPU would have to be waited for
            gradient = torch.where(alive, gradient, 0.0)
        beta1, beta2 = self._beta[:, :1], self._beta[:, 1:]
        state.first.lerp_(gradient, 1 - beta1)
        state.second.lerp_(gradient.square_(), 1 - beta2)
        bias1, bias2 = (1 - self._betas ** (state.step + 1)).to(gradient).T[:, :, None]
        factor = self._factors().to(gradient)[:, None] * alive
        if self._decays is not None:
            state.weights.addcmul_(state.weights, self._decays * factor, value=-1.0)
        size = state.second.sqrt().mul_(bias1 / bias2.sqrt()).add_(_EPS * bias1)
        state.weights.addcdiv_((self._rates * factor).mul_(state.first), size, value=-1.0)

    def _factors(self) -> Tensor:
        """Return the schedule of each member at this step, as a factor of its peak rate."""
        factors = []
        for training in self.trainings:
            warm = min(1.0, (self.state.step + 1) / max(training.warmup, 1))
            cosine = 0.5 * (1 + cos(pi * self.state.step / training.steps))
            factors.append(warm * (cosine if training.decay == "cosine" else 1.0))
        return torch.tensor(factors, dtype=torch.float64)


@torch.no_grad()
def initial_model(run: TrainingRun) -> Any:
    """Return the model of a run before its first step.

    Raises:
        ArgumentError: if slopes are given and their number is not the number of heads in every lin
            or log layer, or there is no such layer.
    """
    model, slopes = build(run.spec, seed=run.training.seed), run.training.slopes
    held = [p for name, p in model.named_parameters() if name.endswith(".terms.lag.p")]
    if slopes and not (held and all(len(p) == len(slopes) for p in held)):
        sizes = [len(p) for p in held]
        raise ArgumentError(f"training: slopes: {len(slopes)} for layers with {sizes} slopes")
    for p in held if slopes else ():
        p.copy_(torch.tensor(slopes))
    return model


def _trained_parameters(model: Any, training: Training) -> set[str]:
    """Return the names of the parameters that a member trains.

    Raises:
        ArgumentError: for a glob that no parameter's name matches.
    """
    names = {name: p.requires_grad for name, p in model.named_parameters()}
    for glob in training.parameters:
        if not any(fnmatch(name, glob) for name in names):
            raise ArgumentError(f"training: parameters: {glob!r} fits none of {', '.join(names)}")
    wanted: Callable[[str], bool] = lambda name: any(fnmatch(name, g) for g in training.parameters)  # noqa: E731
    return {name for name, free in names.items() if free and wanted(name)}
