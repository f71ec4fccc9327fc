"""What a template construction claims: its mechanism and its certificate.

Ramps are flat around 0 and 1: with positive margins only the last step's rounding is left. A
match's snap exceeds 1 by 2, a non-match's stays below 0 by 1 − 4k·e^{−a(1−μ)}, a key's ramp is flat
by 1/2 on both sides, and a copied symbol leads by b(1 − 2δ − δμ − μ) − 1 − own − μ.
"""

from __future__ import annotations

import torch

from interp.proofs.mechanism import Certificate, Mechanism, Part
from interp.proofs.template.plan import Plan

__all__ = ["certificate_of", "mechanism_of"]


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


def certificate_of(plan: Plan) -> Certificate:
    """The bound on a label's error, or on the share of wrong tokens, with its margins."""
    unit, mu = 2.0**-53, plan.coherence
    parts = {"coherence": mu, "rounding unit": unit}
    if plan.readout:
        parts["a"] = plan.a
        away = torch.tensor(-plan.a * (1 - mu), dtype=torch.float64).exp()
        parts["margin of the snap"] = min(2.0, 1 - 4 * plan.k * float(away))
        parts["margin of the readout"] = 0.5
    domain = (
        f"every string of a template, on any of the {plan.task.vocabulary} tokens, last position"
    )
    if not plan.task.symbolic:
        largest = max(abs(float(label)) for label in plan.task.labels)
        size = 4 * (plan.k + 1) * (len(plan.asked) + 4) * largest * unit
        return Certificate(size, parts, domain, error_in_any_basis=None)
    parts |= {"b": plan.b, "margin of the logits": plan.b * plan.slack - 1 - plan.own - mu}
    domain = f"{domain}; the error is the share of wrong top tokens"
    return Certificate(0.0, parts, domain, error_in_any_basis=0.0)
