"""Memory tasks at fixed lags, of signs (Task I) and of real values.

    y_t = f(x_t, x_{t−T_1}, …, x_{t−T_M})

:class:`LaggedMemory` has the common parts: latents, rows and scored positions. A task of this kind
defines ``lags``, ``length``, ``inputs`` (how x is drawn) and its readout ``f``. The latents of a
batch are the contents ``x[t]``, ``x[t-T]`` and the answer ``f``.

*Fixed sparse memory with a Boolean readout* (`memory` §1.2, Task I): x is uniform on {−1, +1} and f
is Boolean. A ±1 input allows a shortcut: one head with geometric weights is a binary code of the
history that an FFN can decode, so a model that solves the task need not have a head for each
memory. Measure this instead of assuming it.

*Fixed sparse memory of real numbers* (`memory` §1.2, Task I): f is Lipschitz. With ``single`` and
one lag this is y_t = x_{t−T}, the target on which the number of heads is measured. Gaussian inputs
do not allow the shortcut of ±1 inputs. A small error says that the memories are fetched, not how:
one head per memory is one way of several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import Problems, refuse_unless
from interp.tasks.base import Batch, Memory, sampler
from interp.tasks.counterfactual import Variable
from interp.tasks.memory.readouts import INPUTS, REAL, Readout, inputs_like


class LaggedMemory:
    """Base class of tasks whose target is a function f of the current input and of the inputs at
    fixed lags (`memory` Task I). A subclass gives ``lags``, ``length`` and ``f``."""

    if TYPE_CHECKING:
        lags: tuple[int, ...]
        length: int

        @property
        def f(self) -> Readout:
            """The function f that is applied to the current input and the memories."""

    @property
    def inputs(self) -> str:
        """How the inputs are drawn: ``signs`` (±1), unless a task says otherwise."""
        return "signs"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the latents that f reads: ``x[t]`` and one ``x[t-T]`` per lag."""
        return ("x[t]", *(f"x[t-{lag}]" for lag in self.lags))

    @property
    def start(self) -> int:
        """The first scored position."""
        return max(self.lags)

    def memories(self) -> tuple[Memory, ...]:
        """Return one memory per lag."""
        return tuple(
            Memory(name, lag) for name, lag in zip(self.arguments[1:], self.lags, strict=True)
        )

    def answers(self) -> dict[str, tuple[str, ...]]:
        """Return the latent that is computed: ``f``, from :attr:`arguments`."""
        return {"f": self.arguments}

    @sampler
    def sample(self, n: int, *, seed: int, device: str = "cpu") -> Batch:
        """Draw ``n`` rows: inputs ``[batch, pos, 1]``, targets ``[batch, pos, 1]``.

        Latents that would lie before the row's start are 0, and so is an answer that needs one.
        """
        x = inputs_like(self.inputs, n, self.length, torch.Generator().manual_seed(seed))
        arguments = [x, *(delay_input(x, lag) for lag in self.lags)]
        mask = torch.arange(self.length) >= self.start
        f = self.f(arguments) * mask
        latents = dict(zip(self.arguments, arguments, strict=True)) | {"f": f}
        batch = Batch(x[..., None], f[..., None], mask.expand(n, -1).clone(), latents)
        return batch.to(device)

    def variables(self) -> Iterator[Variable]:
        """Yield every memory, all of them together if there are several, and the answer ``f``."""
        memories = self.arguments[1:]
        yield from (Variable(name, partial(self._answer_if, (name,))) for name in memories)
        if len(memories) > 1:
            yield Variable("memories", partial(self._answer_if, memories))
        yield Variable("f", lambda base, source: source.targets)

    def _answer_if(self, names: tuple[str, ...], base: Batch, source: Batch) -> Tensor:
        held = {name: (source if name in names else base).latents[name] for name in self.arguments}
        return (self.f(list(held.values())) * base.mask)[..., None]


def check_lags(problems: Problems, lags: tuple[int, ...], length: int) -> None:
    """Record every rule that lags break: at least one, each at least 1, distinct, and shorter than
    the rows."""
    need = problems.need
    whole = isinstance(lags, tuple | list) and all(isinstance(lag, int) for lag in lags)
    refuse_unless(whole, "lags", "must be whole numbers", lags, "e.g. (1, 3)")
    need(len(lags) > 0, "lags", "must name at least one memory", lags, "e.g. (1, 3)")
    need(all(lag >= 1 for lag in lags), "lags", "must be at least 1", lags, "0 is x_t itself")
    need(len(set(lags)) == len(lags), "lags", "must be distinct", lags, "drop duplicates")
    longest = max(lags, default=0)
    rule = f"must exceed the largest lag {longest}"
    need(length > longest, "length", rule, length, "lengthen rows or shorten lags")


def delay_input(x: Float[Tensor, "batch pos"], lag: int) -> Float[Tensor, "batch pos"]:
    """Return the input ``lag`` positions earlier, x_{t−lag}, and zero before the row's start."""
    return torch.nn.functional.pad(x, (lag, 0))[:, : x.shape[1]]


_Name = Literal["parity", "majority", "multiplexer", "table"]
_MOST_LAGS = 12


@dataclass(frozen=True)
class FixedMemory(LaggedMemory):
    """A Boolean function of the current input and of inputs at fixed lags (`memory` Task I).

    Attributes:
        lags: The lags T_1, …, T_M, distinct and at least 1.
        readout: The function f: ``parity`` (the product of the ±1 arguments), ``majority`` (of an
            odd number), ``multiplexer`` (x_t = +1 chooses the first of two memories, −1 the
            second), or ``table`` (a random truth table drawn from ``table_seed``).
        length: Positions of a row; targets count from position max(lags) on.
        table_seed: Seed of the random truth table.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    lags: tuple[int, ...]
    readout: _Name = "parity"
    length: int = 32
    table_seed: int = 0

    def __post_init__(self) -> None:
        problems = Problems("FixedMemory")
        need = problems.need
        check_lags(problems, self.lags, self.length)
        rule = f"must be one of {', '.join(get_args(_Name))}"
        need(self.readout in get_args(_Name), "readout", rule, self.readout, "pick one")
        odd = self.readout != "majority" or len(self.lags) % 2 == 0
        need(odd, "lags", "must be even in number for a majority with x_t", self.lags, "add a lag")
        two = self.readout != "multiplexer" or len(self.lags) == 2
        need(two, "lags", "must be two for a multiplexer", self.lags, "x_t chooses between them")
        few = len(self.lags) <= _MOST_LAGS
        need(few, "lags", f"must be at most {_MOST_LAGS}", self.lags, "f is held as a truth table")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``fixed-memory-parity-1-3``."""
        return "-".join(["fixed-memory", self.readout, *map(str, self.lags)])

    @property
    def f(self) -> Readout:
        """The function f that is applied to the current input and the memories."""
        return Readout(self.readout, len(self.lags), seed=self.table_seed)

    def truth_table(self) -> dict[tuple[int, ...], int]:
        """Return f at every corner of {−1, +1}^{M+1}, arguments in the order of
        :attr:`arguments`."""
        return self.f.truth_table()

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "fixed_memory", **asdict(self)}


@dataclass(frozen=True)
class RealMemory(LaggedMemory):
    """A Lipschitz function of the current input and of inputs at fixed lags (`memory` Task I).

    Attributes:
        lags: The lags T_1, …, T_M, distinct and at least 1.
        readout: The function f: ``single``, ``mean``, ``maximum``, ``waves`` or ``network``.
        inputs: ``gaussian`` (standard normal) or ``signs`` (±1).
        length: Positions of a row; targets count from position max(lags) on.
        readout_seed: Seed of the readout ``network``.
        frequency: Frequency of the readout ``waves``.

    Raises:
        ArgumentError: naming every argument that breaks a rule.
    """

    lags: tuple[int, ...]
    readout: str = "single"
    inputs: str = "gaussian"
    length: int = 32
    readout_seed: int = 0
    frequency: float = 1.0

    def __post_init__(self) -> None:
        problems = Problems("RealMemory")
        need = problems.need
        check_lags(problems, self.lags, self.length)
        rule = f"must be one of {', '.join(INPUTS)}"
        need(self.inputs in INPUTS, "inputs", rule, self.inputs, "pick one")
        self.f.check(problems, REAL, "lags")
        problems.raise_if_any()

    @property
    def name(self) -> str:
        """The task's name in stores and reports, e.g. ``real-memory-single-3``."""
        return "-".join(["real-memory", self.readout, *map(str, self.lags)])

    @property
    def f(self) -> Readout:
        """The function f that is applied to the current input and the memories."""
        return Readout(
            self.readout, len(self.lags), seed=self.readout_seed, frequency=self.frequency
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data."""
        return {"kind": "real_memory", **asdict(self)}
