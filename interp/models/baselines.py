"""Baselines for comparison with a transformer: an MLP, a recurrent network and an LSTM.

    MLP    y = W_L act(… act(W_1 [x_1 … x_n, pairs] + b_1) …) + b_L      one answer for a whole row
    RNN    h_t = act(x_t W + h_{t−1} U + b),  y_t = h_t W_U + b_U        act: tanh or none
    LSTM   c_t = σ(f) c_{t−1} + σ(i) tanh(g),  h_t = σ(o) tanh(c_t)      gates from x_t and h_{t−1}

x_t is the one-hot token (or the real input), or a learned linear embedding of it. ``pairs`` are the
n² entries of X Xᵀ, the pairwise equalities of one-hot tokens (`template` §2.2): ``whole``, or
``masked``, with the diagonal (a position always equals itself) set to zero.

**The MLP reads the whole row and gives one answer, repeated at every position**, so that it is
there for any mask. It cannot answer differently at different positions and needs rows of exactly
``n_ctx``.

Hooks, ``[batch, pos, …]`` unless said otherwise: ``hook_embed`` (x_t); MLP: ``hook_features``
[batch, feature] and ``hidden.{i}.hook_pre|hook_post`` [batch, width]; RNN and LSTM:
``layers.{i}.hook_state`` (h_t), LSTM also ``layers.{i}.hook_cell`` (c_t). States are hooked after
the recurrence has run: changing one affects the layers above, not the next time step.

A baseline that fails shows that this architecture fails with this training, not that every baseline
would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F  # noqa: N812
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from interp.errors import Problems
from interp.hooks.hooked import HookedModule
from interp.hooks.points import HookPoint
from interp.models.ffn import HiddenLayer
from interp.models.spec import Activation, Size
from interp.schema import check_fields, from_fields

Initial = Literal["gaussian", "uniform"]


@dataclass(frozen=True)
class BaselineSpec:
    """Options that all baselines share; use :class:`MLPSpec`, :class:`RNNSpec` or
    :class:`LSTMSpec`.

    Attributes:
        d_in: Channels of a real input, or size of the vocabulary.
        d_out: Size of the output at each position.
        n_ctx: Longest input, in positions (for an MLP: length of every input).
        input: ``tokens`` ([batch, pos]) or ``real`` ([batch, pos, d_in]).
        d_embed: Width of a learned embedding; 0 for one-hot tokens or the real input itself.
        dtype: Dtype of the parameters.
    """

    kind: ClassVar[str] = ""

    d_in: Size
    d_out: Size
    n_ctx: Size
    input: Literal["tokens", "real"] = "tokens"
    d_embed: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        problems = Problems(type(self).__name__)
        if check_fields(self, problems):
            self._check(problems)
        problems.raise_if_any()

    def _check(self, problems: Problems) -> None:
        """Record problems with further rules of a subclass; none by default."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The parameters' dtype."""
        return cast("torch.dtype", getattr(torch, self.dtype))

    @property
    def width(self) -> int:
        """The number of channels of x_t."""
        return self.d_embed or self.d_in

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON data, with its ``kind``."""
        return {"kind": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Any:
        """Rebuild the spec from the result of :meth:`to_dict`.

        Raises:
            ArgumentError: if keys are unknown or missing, or the spec refuses a value.
        """
        given = {name: value for name, value in data.items() if name != "kind"}
        return from_fields(cls, given, Problems(cls.__name__))


@dataclass(frozen=True)
class MLPSpec(BaselineSpec):
    """An MLP on the concatenated row.

    Attributes:
        hidden: Widths of the hidden layers; ``()`` is a linear model.
        activation: ``relu`` or ``gelu``.
        pairs: Whether the MLP also gets the entries of X Xᵀ: ``none``, ``whole``, or ``masked``
            (without the diagonal).
    """

    kind: ClassVar[str] = "mlp"

    hidden: tuple[Size, ...] = (128,)
    activation: Literal["relu", "gelu"] = "relu"
    pairs: Literal["none", "whole", "masked"] = "none"


@dataclass(frozen=True)
class RNNSpec(BaselineSpec):
    """A vanilla recurrent network.

    Attributes:
        d_hidden: Width of the state.
        n_layers: Number of layers; each reads the states of the layer below.
        activation: ``tanh``, or ``linear`` for none.
        initial: The distribution of initial weights: ``gaussian`` of variance 1/fan-in, biases 0,
            with which a linear state persists over many steps; or ``uniform`` on ±1/√d_hidden,
            biases too, as in ``torch.nn.RNN``, with which it decays by a factor of about √3 per
            step.
    """

    kind: ClassVar[str] = "rnn"

    d_hidden: Size = 128
    n_layers: Size = 1
    activation: Literal["tanh", "linear"] = "tanh"
    initial: Initial = "gaussian"


@dataclass(frozen=True)
class LSTMSpec(BaselineSpec):
    """An LSTM with one or more layers.

    Attributes:
        d_hidden: Width of the hidden state and of the cell state.
        n_layers: Number of layers; each reads the hidden states of the layer below.
        initial: Distribution of the initial weights. ``gaussian``: variance 1/fan-in, with
            forget-gate biases 1 and other biases 0. ``uniform``: all weights and biases, the
            forget gates' included, uniform on ±1/√d_hidden. ``torch.nn.LSTM`` draws likewise, but
            has two bias vectors per layer where this model has one.
    """

    kind: ClassVar[str] = "lstm"

    d_hidden: Size = 128
    n_layers: Size = 1
    initial: Initial = "gaussian"


class Baseline(HookedModule):
    """The common part of all baselines: embedding and readout, with a subclass's layers in between.

    Args:
        spec: Sizes and options.
        seed: Seed of the initial weights (Gaussian with variance 1/fan-in, biases at zero, unless
            the spec says otherwise).
    """

    spec: BaselineSpec

    def __init__(self, spec: BaselineSpec, *, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.cfg = SimpleNamespace(n_ctx=spec.n_ctx, device="cpu", dtype=spec.torch_dtype)
        self._generator = torch.Generator().manual_seed(seed)
        self.W_E: nn.Parameter | None = None
        if spec.d_embed:
            fan_in = spec.d_embed if spec.input == "tokens" else spec.d_in
            self.W_E = self._gaussian(spec.d_in, spec.d_embed, fan_in=fan_in)
        self.hook_embed = HookPoint()
        self.W_U = self._gaussian(self._make(), spec.d_out)
        self.b_U = nn.Parameter(torch.zeros(spec.d_out, dtype=spec.torch_dtype))
        del self._generator
        self.setup()
        self.eval()

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch pos d_out"]:
        """Return the output at every position.

        Raises:
            ArgumentError: if the inputs do not fit the spec.
        """
        self._check_inputs(inputs)
        output: Tensor = self._between(self.hook_embed(self._embed(inputs))) @ self.W_U + self.b_U
        return output.expand(-1, inputs.shape[1], -1)

    def _make(self) -> int:
        """Make the layers and return the width of the activations that the readout reads."""
        raise NotImplementedError

    def _between(self, x: Tensor) -> Tensor:
        """Run the layers from ``hook_embed`` to the activations that the readout reads ``[batch,
        pos or 1, width]``."""
        raise NotImplementedError

    def _embed(self, inputs: Tensor) -> Tensor:
        if self.spec.input == "real":
            x = inputs.to(self.W_U.dtype)
            return x if self.W_E is None else x @ self.W_E
        table: Tensor | None = self.W_E
        if table is None:
            table = torch.eye(self.spec.d_in, dtype=self.W_U.dtype, device=self.W_U.device)
        return F.embedding(inputs, table)

    def _gaussian(self, *shape: int, fan_in: int = 0) -> nn.Parameter:
        draw = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return nn.Parameter((draw * (fan_in or shape[0]) ** -0.5).to(self.spec.torch_dtype))

    def _uniform(self, *shape: int, bound: float) -> nn.Parameter:
        draw = torch.rand(*shape, generator=self._generator, dtype=torch.float64)
        return nn.Parameter(((2 * draw - 1) * bound).to(self.spec.torch_dtype))

    def _check_inputs(self, inputs: Tensor) -> None:
        spec, problems = self.spec, Problems(type(self).__name__)
        real, shape = inputs.is_floating_point(), tuple(inputs.shape)
        if spec.input == "real":
            good, rule = real and len(shape) == 3 and shape[-1] == spec.d_in, "real [batch, pos, "
            rule += f"{spec.d_in}]"
        else:
            good = not real and inputs.dtype != torch.bool and len(shape) == 2
            rule = "token ids [batch, pos]"
        found = (shape, str(inputs.dtype))
        problems.need(good, "inputs", f"must be {rule}", found, "reshape or convert them")
        fixed = spec.kind == "mlp"
        fits = len(shape) < 2 or (shape[1] == spec.n_ctx if fixed else shape[1] <= spec.n_ctx)
        rule = f"must have {'exactly' if fixed else 'at most'} n_ctx = {spec.n_ctx} positions"
        problems.need(fits, "inputs", rule, shape, "pad or shorten them")
        problems.raise_if_any()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Baseline:
        """Update ``cfg`` when ``to``, ``double`` … move or convert the parameters."""
        super()._apply(fn, recurse)
        self.cfg.device, self.cfg.dtype = str(self.W_U.device), self.W_U.dtype
        return self


class MLP(Baseline):
    """An MLP that reads all positions of a row at once and gives one answer for the row."""

    spec: MLPSpec

    def _make(self) -> int:
        spec = self.spec
        width = spec.n_ctx * spec.width + (0 if spec.pairs == "none" else spec.n_ctx**2)
        kind = cast("Activation", spec.activation)
        self.hook_features = HookPoint()
        self.hidden = nn.ModuleList()
        for wider in spec.hidden:
            layer = HiddenLayer(width, wider, kind, spec.torch_dtype)
            layer.W = self._gaussian(width, wider)
            self.hidden.append(layer)
            width = wider
        return width

    def _between(self, x: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch 1 feature"]:
        features = x.flatten(start_dim=1)
        if self.spec.pairs != "none":
            products = x @ x.mT
            if self.spec.pairs == "masked":
                products = products * (1 - torch.eye(x.shape[1], dtype=x.dtype, device=x.device))
            features = torch.cat((features, products.flatten(start_dim=1)), dim=1)
        features = self.hook_features(features)
        for layer in self.hidden:
            features = layer(features)
        return features[:, None]


class RecurrentLayer(nn.Module):
    """The weights and hooks of one recurrent layer; the network that owns it does the computation.

    Args:
        width: Width of the layer's input.
        hidden: Width of its state.
        gates: 1 for an RNN; 4 for an LSTM (input, forget, cell and output gate, in this order).
        draw: A function that draws an initial weight of the given shape.
    """

    def __init__(self, width: int, hidden: int, gates: int, draw: Callable[..., Any]) -> None:
        super().__init__()
        self.W, self.U = draw(width, gates * hidden), draw(hidden, gates * hidden)
        bias = torch.zeros(gates * hidden, dtype=self.W.dtype)
        if gates == 4:
            bias[hidden : 2 * hidden] = 1.0
        self.b = nn.Parameter(bias)
        self.hook_state = HookPoint()
        if gates == 4:
            self.hook_cell = HookPoint()


class RNN(Baseline):
    """A vanilla recurrent network, with one or more layers."""

    spec: RNNSpec

    def _make(self) -> int:
        return _stack(self, self.spec.d_hidden, self.spec.n_layers, gates=1)

    def _between(self, x: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos hidden"]:
        linear = self.spec.activation == "linear"
        for layer in self.layers:
            read = x @ layer.W + layer.b
            state, states = read.new_zeros(len(x), self.spec.d_hidden), []
            for now in read.unbind(dim=1):
                state = now + state @ layer.U
                state = state if linear else state.tanh()
                states.append(state)
            x = layer.hook_state(torch.stack(states, dim=1))
        return x


class LSTM(Baseline):
    """A long short-term memory network, with one or more layers."""

    spec: LSTMSpec

    def _make(self) -> int:
        return _stack(self, self.spec.d_hidden, self.spec.n_layers, gates=4)

    def _between(self, x: Float[Tensor, "batch pos width"]) -> Float[Tensor, "batch pos hidden"]:
        for layer in self.layers:
            read = x @ layer.W + layer.b
            state = cell = read.new_zeros(len(x), self.spec.d_hidden)
            states, cells = [], []
            for now in read.unbind(dim=1):
                enter, forget, new, leave = (now + state @ layer.U).chunk(4, dim=-1)
                cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
                state = leave.sigmoid() * cell.tanh()
                states.append(state)
                cells.append(cell)
            layer.hook_cell(torch.stack(cells, dim=1))
            x = layer.hook_state(torch.stack(states, dim=1))
        return x


def _stack(model: Any, hidden: int, n_layers: int, *, gates: int) -> int:
    uniform = model.spec.initial == "uniform"
    draw = partial(model._uniform, bound=hidden**-0.5) if uniform else model._gaussian
    widths = [model.spec.width, *[hidden] * (n_layers - 1)]
    model.layers = nn.ModuleList(RecurrentLayer(w, hidden, gates, draw) for w in widths)
    for layer in model.layers if uniform else ():
        layer.b = draw(gates * hidden)
    return hidden
