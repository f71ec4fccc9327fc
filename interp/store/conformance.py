"""Do a model's hooks carry what their names say?

For every block that fires the hooks involved, on a row or two:

    resid_mid  = resid_pre + attn_out        resid_post = resid_mid + mlp_out
    pattern    = normaliser(scores)          z = pattern @ v
    logits     = those of the reference model (a TransformerBridge's original)

Named hooks have carried wrong tensors on some architectures, and nothing fails when they do.
Blocks that run attention and FFN side by side, or replace instead of adding, break the first two
by design: a failed check is reported, not refused. A check that passes on two rows does not show
that the hook is right on all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from interp.store.capture import attached, evaluating

if TYPE_CHECKING:
    from interp.lens import HookedModel

__all__ = ["Conformance", "conformance"]

_KINDS = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out")
_ATTENTION = ("attn.hook_attn_scores", "attn.hook_pattern", "attn.hook_v", "attn.hook_z")
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_TOLERANCE_HALF = 3e-2

Values = dict[str, Tensor]


@dataclass
class Conformance:
    """What was checked and what failed.

    Attributes:
        passed: ``check`` → number of blocks in which it holds.
        failed: ``blocks.3: pattern = normaliser(scores): off by 0.8`` …
    """

    passed: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def add(self, where: str, check: str, got: Tensor, expected: Tensor) -> None:
        """Compare two tensors and write the outcome down."""
        error = _relative(got, expected)
        if error <= _TOLERANCE.get(expected.dtype, _TOLERANCE_HALF):
            self.passed[check] = self.passed.get(check, 0) + 1
        else:
            self.failed.append(f"{where}: {check} is off by {error:.2g} of the largest value")

    def to_dict(self) -> dict[str, Any]:
        """JSON data for the manifest."""
        return {"passed": self.passed, "failed": self.failed}

    def describe(self) -> str:
        """One line, or one more for every failure."""
        if not self.passed and not self.failed:
            return "nothing to check: the model does not fire the hooks involved"
        held = ", ".join(f"{check} ({n})" for check, n in self.passed.items()) or "nothing"
        return "\n".join([held, *(f"  NOT: {line}" for line in self.failed)])


def _relative(got: Tensor, expected: Tensor) -> float:
    if got.shape != expected.shape:
        return float("inf")
    got, expected = got.double(), expected.double()
    scale = expected[expected.isfinite()].abs().max().item() if expected.numel() else 0.0
    error = (got - expected).abs().nan_to_num(nan=float("inf")).max().item() if got.numel() else 0
    return error / scale if scale > 0 else error


def _normaliser(model: Any) -> Callable[[Tensor], Tensor]:
    spec = getattr(model, "spec", None)
    if getattr(spec, "normalizer", "softmax") == "none":
        return torch.exp
    return lambda scores: scores.softmax(-1)


def _check_block(found: Conformance, where: str, has: Values, model: HookedModel) -> None:
    def value(kind: str) -> Tensor | None:
        return has.get(f"{where}.{kind}")

    pre, mid, post = (value(f"hook_resid_{kind}") for kind in ("pre", "mid", "post"))
    attn, mlp = value("hook_attn_out"), value("hook_mlp_out")
    scores, pattern, v, z = (value(kind) for kind in _ATTENTION)
    if pre is not None and mid is not None and attn is not None:
        found.add(where, "resid_mid = resid_pre + attn_out", mid, pre + attn)
    if mid is not None and post is not None and mlp is not None:
        found.add(where, "resid_post = resid_mid + mlp_out", post, mid + mlp)
    if scores is not None and pattern is not None:
        expected = _normaliser(model)(scores)
        empty = scores.isneginf().all(dim=-1, keepdim=True)
        found.add(where, "pattern = normaliser(scores)", pattern, expected.masked_fill(empty, 0.0))
    if pattern is not None and v is not None and z is not None and v.ndim == z.ndim == 4:
        shared = v.repeat_interleave(z.shape[2] // v.shape[2], dim=2)
        expected = torch.einsum("bhqk,bkhd->bqhd", pattern.to(shared.dtype), shared)
        found.add(where, "z = pattern @ v", z, expected)


def conformance(model: HookedModel, inputs: Tensor) -> Conformance:
    """Check the named hooks of a model on a row or two.

    Args:
        model: any hooked model; hooks it does not fire are not checked.
        inputs: what it takes, ``[row, …]``.
    """
    found = Conformance()
    blocks = {n.rsplit(".hook_resid_post", 1)[0] for n in model.hook_dict if "resid_post" in n}
    names = [f"{b}.{kind}" for b in sorted(blocks) for kind in (*_KINDS, *_ATTENTION)]
    has: Values = {}

    def see(name: str, values: Any) -> None:
        if isinstance(values, Tensor):
            has[name] = values
        block = name.removesuffix(".hook_resid_post")
        if block != name:
            _check_block(found, block, has, model)
            has.clear()

    wanted = [name for name in names if name in model.hook_dict]
    with evaluating(model), attached(model, wanted, see):
        output = model(inputs)  # type: ignore[operator]
    original = getattr(model, "original_model", None)
    if original is not None and isinstance(output, Tensor):
        with evaluating(model):
            reference = getattr(original(inputs), "logits", None)
        if reference is not None:
            found.add("model", "logits = reference", output, reference)
    return found
