"""What a language model's heads do together, in the sentences with which a page begins.

The induction circuit comes first: which heads attend to what followed an equal token, which earlier
heads they read to find it, and what is lost without either. Then follows what else is confirmed.
Every sentence is made from a role table's numbers. They are about heads that were ablated one at a
time: they do not say what several heads do only together, or what one does when another is gone.

One figure, drawn from tables alone, shows which heads read which.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from interp.figures.lines import Pair, pair_lines
from probes.roles.decision import no_roles
from probes.roles.profile import LANGUAGE, Profile
from prooflens.pages.findings import head_names, in_words, loss_without, of_groups

_PAIRS, _NAMED = 24, 3
_MARKED = ("previous-token", "induction", "duplicate-token")


def reading_figure(weights: pd.DataFrame, roles: pd.DataFrame) -> tuple[Figure, str] | None:
    """Draw which heads could read which by K-composition.

    Args:
        weights: A head table of all heads with k_composition.
        roles: The role table: heads of some roles are marked. If there are induction heads that
            read previous-token heads, only these pairs are shown.

    Returns:
        The figure and its caption; None if there are no pairs.
    """
    table = weights[weights["metric"] == "k_composition"]
    if table.empty:
        return None
    roles = roles[roles["head"] >= 0] if len(roles) else no_roles()
    marked: dict[str, list[tuple[int, int]]] = {}
    for role in _MARKED:
        own = roles[roles["role"] == role]
        marked[role] = list(zip(own["layer"], own["head"], strict=True))
    writers = head_names(roles[roles["role"] == "previous-token"])
    readers = head_names(roles[roles["role"] == "induction"])
    named = pd.Series(head_names(table), index=table.index, dtype=object)
    chosen = table[table["target"].isin(writers) & named.isin(readers)]
    told = "K-composition of induction heads with previous-token heads"
    if chosen.empty:
        chosen, told = table, "The strongest K-compositions of all pairs"
    top: list[Any] = list(chosen.nlargest(_PAIRS, "effect").itertuples())
    pairs: list[Pair] = [
        (_layer_and_head(r.target), (int(r.layer), int(r.head)), r.score) for r in top
    ]
    layers, heads = (int(weights[name].max()) + 1 for name in ("layer", "head"))
    numbers = ", ".join(f"{r.target} → L{r.layer}H{r.head} {r.score:.2f}" for r in top[:_NAMED])
    figure = pair_lines([heads] * layers, pairs, "K-composition", named=marked)
    return figure, f"{told}: {numbers}."


def _layer_and_head(name: str) -> tuple[int, int]:
    layer, _, head = name[1:].partition("H")
    return int(layer), int(head)


_UNSURE = {
    "necessary, not specific": "necessary, not specific: the heads are needed, and not for this "
    "alone",
    "candidate": "candidates: a test could not be put, or needs more rows",
    "rejected": "rejected: the behaviour is there, and no loss without it",
}

_WRITERS = re.compile(r"earlier heads \(([^)]*)\)")


def circuit_sentences(
    roles: pd.DataFrame, attention: pd.Series | None = None, *, profile: Profile = LANGUAGE
) -> list[str]:
    """Describe in two to four sentences what the heads do.

    Args:
        roles: A role table, decided by ``profile``.
        attention: For every head, named ``L0H1``, the share of its attention that goes to what
            followed equal tokens; used if no head does induction.
        profile: The profile, whose floor is named if no head reaches it.
    """
    groups = list(_groups(roles))
    roles = roles[roles["head"] >= 0]
    sure = roles[roles["status"] == "confirmed"]
    induction = sure[sure["role"] == "induction"]
    if induction.empty:
        said = [_no_induction(roles, attention, profile)]
    else:
        said = list(_induction(induction, sure))
    others = list(_others(sure if induction.empty else _untold(sure, induction)))
    if others:
        said.append(f"{'Confirmed' if induction.empty else 'Also confirmed'}: {'; '.join(others)}.")
    elif induction.empty:
        said.append("No other role is confirmed of any head.")
    return [*said, *groups]


def _groups(roles: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each group of heads that do one job together, with the shares of its
    members."""
    if "component" not in roles:
        return
    groups = roles[(roles["component"] == "group") & (roles["status"] == "confirmed")]
    for _, row in groups.iterrows():
        members = roles[(roles["group"] == row["group"]) & (roles["role"] == row["role"])]
        alone = members.loc[members["head"] >= 0, "effect"].astype(float).dropna()
        single = f", by {_range(alone)} without one of them" if len(alone) else ""
        yield (
            f"{in_words(str(row['group']).split('+'))} share one job, {row['role']}: without them "
            f"together the loss rises by {row['effect']:.2f} nats{single}. Their shares: "
            f"{in_words(_shares(row['tests']))}."
        )


def _shares(tests: str) -> list[str]:
    named = [test for test in json.loads(tests) if test["name"].startswith("share of L")]
    return [f"{test['name'].removeprefix('share of ')} {test['score']:.0%}" for test in named]


def circuit_doubts(roles: pd.DataFrame) -> list[str]:
    """Say why the circuit that a page draws from a role table may not be the whole story.

    Args:
        roles: A role table (:func:`probes.roles.find.find_roles`).

    Returns:
        Sentences: how many roles of heads are not confirmed, and whether several heads that were
        ablated one at a time play the same confirmed role.
    """
    roles = roles[roles["head"] >= 0]
    sure = roles[roles["status"] == "confirmed"]
    said = []
    for status, told in _UNSURE.items():
        count = int((roles["status"] == status).sum())
        if count:
            said.append(f"{count} of {len(roles)} roles are {told}. No finding speaks of them.")
    alone = sure[~sure["group"].astype(bool)] if "group" in sure else sure
    crowded = alone.groupby("role")["head"].count()
    if (crowded > 1).any():
        said.append(
            "Heads are cut one at a time: where several do the same, each seems to matter less "
            "than they do together."
        )
    return said


def _induction(induction: pd.DataFrame, sure: pd.DataFrame) -> Iterator[str]:
    """Yield the sentences about the induction circuit: its heads, the earlier heads that they read,
    what is lost, and what they write."""
    order = induction.assign(missed=loss_without(induction))
    order = order.sort_values("missed", ascending=False, kind="stable")
    readers, many = head_names(order), len(order) > 1
    yield (
        f"{in_words(readers)} {'do' if many else 'does'} induction: {_share(order['strength'])} of "
        f"{'their' if many else 'its'} attention goes to what followed the same token earlier in "
        f"the row. When {_who(order)}, the loss on random tokens that repeat "
        f"rises by {_range(order['missed'])} nats a token."
    )
    read = [
        (names[1], test["score"])
        for tests in order["tests"]
        for test in json.loads(tests)
        if (names := _WRITERS.search(test["name"]))
    ]
    named = [names.removesuffix(" …").split(", ") for names, _ in read]
    often = Counter(writer for names in named for writer in names)
    writers = [writer for writer, _ in often.most_common()]  # the first named first among equals
    if writers:
        falls = pd.Series([fall for _, fall in read])
        others = ["others"] * any(names.endswith("…") for names, _ in read)
        look = "look" if len(writers) + len(others) > 1 else "looks"
        yield (
            f"{'They find' if many else 'It finds'} it by reading {in_words(writers + others)}, "
            f"which {look} at the token before: without that, this share falls by {_range(falls)}"
            f"{_of_writers(writers, sure)}."
        )
    copying = sure[(sure["role"] == "copying") & (sure["strength"] > 0)]
    own = copying[_rows_of_heads(copying, readers)]
    if len(own):
        yield (
            f"{in_words(head_names(own.sort_values('strength', ascending=False)))} then "
            f"{'raise' if len(own) > 1 else 'raises'} the logit of the token found, by "
            f"{_range(own['strength'])}."
        )


def _who(readers: pd.DataFrame) -> str:
    """Say which heads lose their attention: the head, one of several, or the heads of a group at
    once."""
    groups = [group for group in dict.fromkeys(readers.get("group", ())) if group]
    if not groups:
        return f"{'one of them' if len(readers) > 1 else 'it'} loses that attention"
    joint = " or ".join(in_words(group.split("+")) for group in groups)
    if not readers["group"].astype(bool).all():
        return f"one of them, or {joint} at once, loses that attention"
    return f"{'all of them' if len(groups) == 1 else joint} lose that attention at once"


def _of_writers(writers: Sequence[str], sure: pd.DataFrame) -> str:
    """Say how much the loss rises without the attention of those earlier heads that are confirmed;
    empty if none is."""
    rows = sure[sure["role"] == "previous-token"]
    rows = rows[_rows_of_heads(rows, writers)]
    if rows.empty:
        return ""
    names = head_names(rows.sort_values("strength", ascending=False, kind="stable"))
    lost = f"the loss rises by {_range(loss_without(rows))} nats"
    if len(names) == 1:
        return f"; when {names[0]} loses that attention, {lost}"
    return f". Of these {in_words(names)} are confirmed: when {_who(rows)}, {lost}"


def _no_induction(roles: pd.DataFrame, attention: pd.Series | None, profile: Profile) -> str:
    maybe = roles[roles["role"] == "induction"]
    if len(maybe):
        names = head_names(maybe)
        return (
            f"No head is shown to do induction: {in_words(names)} "
            f"{'attend' if len(names) > 1 else 'attends'} to what followed equal tokens "
            f"({_share(maybe['strength'])}){_loss_phrase(maybe)}. {_not_shown(maybe)}"
        )
    if attention is None or attention.dropna().empty:
        return "No head does induction: none attends enough to what followed equal tokens."
    best, asked = str(attention.idxmax()), profile.floors.share
    why = f"and {asked:.2g} is asked"
    if attention[best] >= asked:
        why = "not clearly more than it would be by tokens of other rows"
    return (
        f"No head does induction: the most that one attends to what followed equal tokens is "
        f"{attention[best]:.2f} ({best}), {why}."
    )


def _loss_phrase(maybe: pd.DataFrame) -> str:
    """Say how much the loss changes without heads that may do induction, or without their group."""
    lost = loss_without(maybe).dropna()
    if lost.empty:
        return ""
    group = " or its group" if of_groups(maybe).notna().any() else ""
    return f"; without that attention of one{group} the loss changes by {_range(lost, signed=True)}"


def _not_shown(maybe: pd.DataFrame) -> str:
    """Say why heads that may do induction are not confirmed, by their statuses."""
    said = {
        "candidate": "candidates, since a test could not be put or needs more rows",
        "rejected": "rejected, since no cause holds",
        "necessary, not specific": "needed, and not for this alone",
    }
    some = [
        f"{in_words(head_names(maybe[maybe['status'] == status]))} "
        f"{'is' if (maybe['status'] == status).sum() == 1 else 'are'} {words}"
        for status, words in said.items()
        if (maybe["status"] == status).any()
    ]
    return f"{'; '.join(some)}."


def _untold(sure: pd.DataFrame, induction: pd.DataFrame) -> pd.DataFrame:
    """Return the confirmed roles outside the induction circuit, to which the copying of its heads
    belongs."""
    copied = (sure["role"] == "copying") & (sure["strength"] > 0)
    told = copied & _rows_of_heads(sure, head_names(induction))
    return sure[~told & ~sure["role"].isin(("induction", "previous-token"))]


def _others(sure: pd.DataFrame) -> Iterator[str]:
    for role, rows in sure.groupby("role", sort=False):
        order = rows.assign(missed=loss_without(rows))
        order = order.sort_values("missed", ascending=False, kind="stable")
        suffix = [" (suppresses)" if s < 0 else "" for s in order["strength"]]
        names = [n + s for n, s in zip(head_names(order), suffix, strict=True)]
        yield f"{role} {in_words(names)} (loss {_range(order['missed'], signed=True)})"


def _rows_of_heads(rows: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """Return which rows are about one of some heads."""
    return pd.Series(head_names(rows), index=rows.index, dtype=object).isin(names)


def _share(values: pd.Series) -> str:
    low, high = f"{values.min():.0%}", f"{values.max():.0%}"
    return low if low == high else f"{low[:-1]} to {high}"


def _range(values: pd.Series, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    low, high = format(values.min(), f"{sign}.2f"), format(values.max(), f"{sign}.2f")
    return low if low == high else f"{low} to {high}"
