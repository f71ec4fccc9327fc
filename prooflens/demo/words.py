"""The demo's sentences, each made from measured numbers and saying no more than they do."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from interp.proofs.mechanism import Certificate
from prooflens.demo.subject import Subject


def roles_in_words(one: Subject) -> str:
    """Which head extracts which memory and what the FFN computes, or that nothing is confirmed."""
    return f"In the {one.name} model " + "; ".join(_served(one)) + "."


def proof_in_words(built: Subject, held: pd.DataFrame, certificate: Certificate) -> str:
    """What is confirmed of the construction, how exact it is, and how much of it others do.

    Args:
        built: The construction.
        held: Model → whether each statement holds for it.
        certificate: The certificate of the construction.
    """
    heads = _memory_heads(built)
    sizes = heads["target"].value_counts(sort=False)
    groups = ", ".join(f"{count} for {memory}" for memory, count in sizes.items())
    direct = _looking_at_their_lag(built)
    worst, bound = built.performance["worst"], certificate.error
    exact = "within" if worst <= bound else "ABOVE"
    counts = {name: int(holds.sum()) for name, holds in held.items()}
    held_by = ", ".join(f"{count} hold for the {name} model" for name, count in counts.items())
    found = f"with {len(heads)} confirmed memory heads ({groups})" if len(heads) else "unconfirmed"
    return (
        f"The constructed proof, {found}, of which {direct} attend most to the lag they serve, has "
        f"a worst error of {worst:.1e}, {exact} its certificate of {bound:.1e}. Of its {len(held)} "
        f"statements about which component does what, {held_by}."
    )


def solving(one: Subject) -> str:
    """A sentence about how well the model solves its task."""
    found = one.performance
    return (
        f"On fresh rows the {one.name} model is right at {found['accuracy']:.2%} of positions "
        f"(error {found['loss']:.1e} of the target's variance)."
    )


def looking(one: Subject) -> str:
    """A sentence about whether heads look at the lags they serve, and what their sum selects."""
    heads = _memory_heads(one)
    direct = _looking_at_their_lag(one)
    sums = ", ".join(
        f"{one.kernels.concentration(memory, lag):.1%} for {memory} at lag {lag}"
        for memory, lag in one.memories.items()
    )
    served = (
        f"{direct} of {len(heads)} confirmed memory heads attend most to the lag they serve"
        if len(heads)
        else "no memory head is confirmed"
    )
    kernel = f"Share of the heads' summed kernel at the memory's lag: {sums}."
    return f"In the {one.name} model {served}. {kernel}"


def reading(one: Subject) -> str:
    """A sentence about what a probe reads of the answer before and after the FFN."""
    read = one.readable["f"]
    return (
        f"In the {one.name} model a linear probe reads f with r² "
        f"{read['blocks.0.hook_resid_mid']:.2f} after attention and {read.iloc[-1]:.2f} at the end."
    )


def margins(certificate: Certificate) -> str:
    """A sentence about the terms that the certificate consists of."""
    parts = ", ".join(f"{name} {value:.2g}" for name, value in certificate.parts.items())
    return (
        f"The construction's certificate of {certificate.error:.1e} is for "
        f"{certificate.domain}. It is made of: {parts}; the slots' errors must sum to less than "
        "the margin, which the readout then removes."
    )


def _memory_heads(one: Subject) -> pd.DataFrame:
    roles = one.roles
    return roles[(roles["role"] == "memory-location") & (roles["status"] == "confirmed")]


def _looking_at_their_lag(one: Subject) -> int:
    """How many confirmed memory heads attend most to the lag of the memory they serve."""
    columns = _memory_heads(one)[["head", "target"]]
    return sum(
        int(one.kernels.mass[head].argmax()) == one.memories[memory]
        for head, memory in columns.itertuples(index=False, name=None)
    )


def _served(one: Subject) -> Iterator[str]:
    sure = _memory_heads(one)
    for memory, lag in one.memories.items():
        mine = sure[sure["target"] == memory]
        candidates = int((one.roles["target"] == memory).sum())
        if len(mine):
            heads = " and ".join(f"L{row.layer}H{row.head}" for row in mine.itertuples())
            verb = "extract" if len(mine) > 1 else "extracts"
            strength = mine["strength"].max()
            yield f"head {heads} {verb} {memory} (lag {lag}; r² lost without it {strength:.2f})"
        else:
            rest = f" ({candidates} seem to)" if candidates else ""
            yield f"no head is confirmed to extract {memory}{rest}"
    readout = one.roles[(one.roles["role"] == "readout")]
    readout = readout[readout["status"] == "confirmed"]
    if len(readout):
        row = readout.iloc[0]
        yield (
            f"the FFN of layer {row['layer']} computes the Boolean function (r² lost without it "
            f"{row['strength']:.2f}, the output changes by {row['effect']:.0%} of its variance)"
        )
    else:
        yield "no FFN is confirmed to compute the Boolean function"
