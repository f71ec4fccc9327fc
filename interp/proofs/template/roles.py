"""Which component of a template construction does what, and which coordinate holds what."""

from __future__ import annotations

import torch

from interp.proofs.mechanism import Mechanism, Part
from interp.proofs.template.plan import Plan

__all__ = ["mechanism_of"]


def mechanism_of(plan: Plan) -> Mechanism:
    """The components by role, and the coordinate that holds each bit, source code and label."""
    target = "source" if plan.task.symbolic else "label"
    parts: list[Part] = []
    held: dict[str, tuple[int, str]] = {}
    if plan.readout:
        parts.append(Part("head", 0, 0, "symbol-equality", "equality"))
        held |= {
            f"equality[{j}]": (plan.row.start + j, "blocks.0.hook_resid_mid") for j in range(plan.k)
        }
    if plan.fixes:
        parts += [
            Part("head", 0, j + 1, "fixed-position", f"token[{j}]", lag=plan.k - 1 - j)
            for j in range(plan.k - 1)
        ]
    if plan.readout == 2:
        parts.append(Part("ffn", 0, None, "snap", "equality"))
        parts.append(Part("head", 1, 0, "uniform", "equality"))
        held |= {
            bit.name: (plan.means.start + i, "blocks.1.hook_resid_mid")
            for i, bit in enumerate(plan.asked)
        }
    at = plan.readout - 1
    if plan.readout:
        parts.append(Part("ffn", at, None, "readout", target))
        after = f"blocks.{at}.hook_resid_post"
        if plan.task.symbolic:
            held |= {f"source[{j}]": (plan.code.start + j, after) for j in range(plan.k)}
        else:
            held["label"] = (plan.label.start, after)
    if plan.task.symbolic:
        parts.append(Part("head", plan.readout, 0, "copying", "symbol"))
    axes = torch.eye(plan.width, dtype=torch.float64)
    return Mechanism(
        parts=tuple(parts),
        directions={name: axes[i] for name, (i, _) in held.items()},
        written={name: hook for name, (_, hook) in held.items()},
    )
