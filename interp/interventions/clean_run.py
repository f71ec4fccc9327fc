"""A model's run on some rows, kept so that it can be repeated with something changed.

    clean = CleanRun.of(model, inputs)
    clean.output                                           as the model is
    clean.edited([(hook, function)], keep=[site])          with hooks that replace what is there
    clean.without([Component("head", 1, 0)], means)        with components replaced, all at once

What comes before the first change is as it was: a repeated run starts at the layer of the first
hook that is changed or kept (:mod:`interp.interventions.prefix_reuse`). Models that cannot be run
from the middle on (wrapped modules, blocks whose FFN does not read the stream after attention) are
run as a whole, so every hooked model gives an answer, some of them later.

Many single components of deep models are quicker in :func:`interp.interventions.ablate.ablated`,
which runs changed copies in one batch; a run with changes is for what is changed together, for
hooks inside attention, and where an activation on the way is wanted. A changed output shows that
the model relies on what was changed as it is now, not what it computes there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from interp.errors import Problems
from interp.hooks.capture import evaluating
from interp.hooks.hook_names import require_hooks
from interp.hooks.hooked import watched
from interp.hooks.transformer_lens_adapter import HookedModel
from interp.interventions.components import Component, hook_of, hooks_of, need_parts, replaced
from interp.interventions.counterfactuals import mean_values
from interp.interventions.prefix_reuse import Trace, can_replay, not_finite

__all__ = ["CleanRun", "Edit", "component_means"]

Edit = tuple[str, Callable[..., Any]]
"""A hook's name and ``function(tensor, hook)``, whose result replaces the tensor there."""


@dataclass(frozen=True)
class CleanRun:
    """A model's output on some rows, from which changed runs can be made.

    Attributes:
        model: The model that was run.
        inputs: The inputs it was run on, ``[row, pos(, channel)]``.
        output: The output it gave, ``[row, pos, output]``.
        trace: The streams that enter its layers; None where it cannot be run from the middle on.
    """

    model: Any
    inputs: Tensor
    output: Tensor
    trace: Trace | None

    @classmethod
    def of(cls, model: HookedModel, inputs: Tensor, *, replay: bool | None = None) -> CleanRun:
        """Run a model in evaluation mode.

        Args:
            model: One of our models, a ``TransformerBridge`` or a wrapped module.
            inputs: ``[row, pos(, channel)]``; memory grows with rows × layers.
            replay: Whether it can be run from the middle on; found out by default
                (:func:`~interp.interventions.prefix_reuse.can_replay`), which costs two passes
                over two rows. Ask once where many rows are run a few at a time.

        Raises:
            ArgumentError: if the streams or the output are not finite.
        """
        if can_replay(model, inputs) if replay is None else replay:
            trace = Trace.of(model, inputs, check=False)
            return cls(model, inputs, trace.output, trace)
        with evaluating(model):
            output: Tensor = model(inputs)  # type: ignore[operator]
        if not bool(output.isfinite().all()):
            raise not_finite(model, inputs)
        return cls(model, inputs, output, None)

    def edited(
        self, edits: Sequence[Edit], keep: Sequence[str] = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The output when hooks replace what is there, and the activations kept on the way.

        Args:
            edits: Hooks and what they do; several at one hook act in this order.
            keep: Hooks to return, after all edits, under the names (or aliases) given here.

        Raises:
            HookError: for a hook that the model lacks, or that did not fire: a change that never
                happened would read as one without effect.
        """
        kept: dict[str, Tensor] = {}
        keeping: list[Edit] = [(name, partial(_kept, kept=kept, name=name)) for name in keep]
        names = [name for name, _ in (*edits, *keeping)]
        require_hooks(names, self.model.hook_dict, "does not have")
        fired: set[str] = set()
        hooks = [(name, watched(name, act, fired)) for name, act in (*edits, *keeping)]
        start = min((self._layer(name) for name in names), default=-1)
        with evaluating(self.model):
            if self.trace is None or start < 0:
                output = self.model.run_with_hooks(self.inputs, fwd_hooks=hooks)
            else:
                with self.model.hooks(fwd_hooks=hooks):
                    output = self.trace.finish(self.trace.before(start), start)
        require_hooks(names, fired, "did not fire")
        return output, kept

    def without(
        self, parts: Sequence[Component], values: Mapping[str, Tensor], keep: Sequence[str] = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The output with some components replaced, and the activations kept on the way.

        Heads that work in a signed combination are to be ablated together: without one of them the
        others' cancelling parts are left standing, far from anything the model ever computes.

        Args:
            parts: What to replace, all at once: heads, FFNs, positions.
            values: Hook → what stands in, ``[row, pos, …]`` or one row for all; see
                :func:`component_means`.
            keep: Hooks whose activations are returned, as for :meth:`edited`.

        Raises:
            ArgumentError: for a component that the model does not have.
            HookError: for a component that has no hook.
        """
        problems = Problems("CleanRun.without")
        need_parts(problems, self.model, parts, self.inputs.shape[1])
        problems.raise_if_any()
        places = [(hook_of(self.model, part), part) for part in parts]
        edits = [
            (name, partial(replaced, part=part, instead=values[name])) for name, part in places
        ]
        return self.edited(edits, keep)

    def _layer(self, name: str) -> int:
        """Which layer a hook is in, or −1 where nothing says that it is in one."""
        parts = name.split(".")
        return int(parts[1]) if parts[0] == "blocks" and parts[1].isdigit() else -1


def component_means(
    model: HookedModel, inputs: Tensor, parts: Sequence[Component], *, tokens: int = 1024
) -> dict[str, Tensor]:
    """The mean of what components write, per position: hook → ``[1, pos, …]``.

    Args:
        model: One of our models, a ``TransformerBridge`` or a wrapped module.
        inputs: ``[row, pos(, channel)]``.
        parts: Heads, FFNs, positions.
        tokens: At most this many positions per forward pass (at least one row).

    Raises:
        ArgumentError: for a component that the model does not have; for means that are not finite.
        HookError: where a component has no hook.
    """
    problems = Problems("component_means")
    need_parts(problems, model, parts, inputs.shape[1])
    problems.raise_if_any()
    return mean_values(model, inputs, hooks_of(model, parts), tokens)


def _kept(value: Tensor, hook: Any, kept: dict[str, Tensor], name: str) -> None:
    kept[name] = value
