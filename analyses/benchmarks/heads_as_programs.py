"""Attention of a real language model's heads as programs: fitted on some texts, judged on others.

    python -m analyses benchmark heads_as_programs smollm2-135m [--window N] [--notes N] …

A head's program is a softmax over terms of tokens and places (``token_terms``): lags, kinds of
tokens, equal ones, what makes the query rest, and directions of the embedding. The terms are the
same for all heads, and nothing that a layer computed is read. Texts are the topics of
Python's own help (``pydoc_data``): numbers are fitted on every second one, and judged on others, or
with ``--judge FILE`` on the pieces of a text file. ``--own N`` fits on N rows besides that the
model makes up itself, from its own predictions; no other language model takes part. With ``--window
N`` a head has one term more, which is no program: the logarithm of its own attention where its
layer sees the last N tokens of each place alone (``last_tokens``). With ``--notes N`` programs
share N notes on the text and are fitted together (``noted_programs``), on the further texts of
``help_texts`` as well. Told are, on the judged texts, over queries after the first,

    overlap    Σ_j min(p, q) / Σ_j max(p, q)
    kl         Σ_j p log(p / q), in nats

of a head's attention p with its program's q; and the same with the best of three trivial patterns
(first token, previous token, uniform), chosen on the fitted texts, a hundredth of which is spread
evenly for the kl. A head *rests* if more than half of its attention is on the first token. Then
heads are replaced in the order in which they change predictions least on the fitted texts (in
nats from the model's own), each beside those before it: ``curve`` has for each share the perplexity
on the judged texts, and that with the last heads of the order replaced instead; its rise with a
quarter of the heads replaced has a 95 % interval over rows. What heads write stays the model's own.

JSON keys: ``model``, ``window``, ``notes``, ``own``, ``judged`` (the file's name, or "topics"),
``overlap`` and ``kl`` (means over heads), ``overlap_working`` (over heads that do not rest),
``overlap_fitted`` (on the texts that were fitted), ``trivial``, ``trivial_working``, ``resting``,
``quarter`` (by how much the perplexity rises with a quarter of the heads replaced, as a share),
``quarter_low``, ``quarter_high``, ``quarter_resting`` (how many of the quarter rest), ``curve``,
``heads``. With ``--keep`` it is kept, without the programs' words, as
``analyses/tables/programs-MODEL.json``, and drawn (``docs/images/heads-as-programs.png``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from pathlib import Path
from pydoc_data.topics import topics
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

import prooflens as pl
from analyses.benchmarks.help_texts import further_rows
from analyses.benchmarks.last_tokens import patterns_of_last_tokens
from analyses.benchmarks.noted_programs import Texts, fit_noted_programs
from analyses.benchmarks.result import write_result
from analyses.benchmarks.token_terms import (
    TokenTerms,
    attention,
    fit_strengths,
    program_words,
)
from analyses.pictures.first_picture import write_drawing
from prooflens.errors import Problems
from prooflens.files import read_text
from prooflens.hooks import evaluating
from prooflens.plot import PALETTE, size, style
from prooflens.run import Array, Metric, Replace, Run, Site, head_sites, next_tokens

__all__ = [
    "keep_table",
    "kept_tables",
    "main",
    "overlap_and_kl",
    "pieces",
    "sample_rows",
    "texts",
    "trivial_patterns",
]

TABLES = Path(__file__).parents[1] / "tables"
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "heads-as-programs.png"

_SHARES = (0.0, 0.125, 0.25, 0.375, 0.5, 1.0)
_LOOSE = 0.01
"""Share of a trivial pattern that is spread evenly over the keys, so that the KL divergence from it
is finite."""
_FEW = 6
"""Number of rows on which heads are replaced one by one to put them in order."""
_STEPS = 8
"""Number of steps in which heads are put in order; each adds an eighth of them."""
_DRAWS = 2000
_AT_ONCE = 24
"""Number of rows whose patterns of all heads are measured together. It bounds memory."""
_FAINT = 1e-6
"""Smallest attention whose logarithm is taken; smaller values are set to it."""
_TOGETHER = 45
"""Number of heads that are fitted together. It bounds memory."""


@dataclass(frozen=True)
class _Apart(Metric):
    """Metric: how far the predictions are from those of the unchanged model, in nats. Unlike a loss
    it does not fall where a change happens to fit the text."""

    @property
    def compares(self) -> bool:
        return True

    def at(self, output: Tensor, places: Any, clean: Tensor | None) -> Tensor:
        after = output.float().log_softmax(-1)
        before = after if clean is None else clean.float().log_softmax(-1)
        return (before.exp() * (before - after)).sum(-1).double()


@dataclass(frozen=True)
class _ProgramHead:
    site: Site
    edit: Replace
    on_fit: Replace
    about: dict[str, Any]


def texts(tokenizer: Any, rows: int, length: int, *, odd: bool, bos: int | None) -> Tensor:
    """Return rows of tokens ``[row, pos]``: the beginnings of topics of Python's help, one topic
    per row, of those that are long enough.

    Args:
        tokenizer: The model's tokenizer.
        rows, length: The number of rows, and of tokens in each.
        odd: Whether to take every second topic from the second on, instead of from the first on.
        bos: The token that begins every row, if the model wants one.

    Raises:
        ArgumentError: if there are not enough topics of this length.
    """
    found: list[list[int]] = []
    start = [] if bos is None else [bos]
    for name in sorted(topics)[int(odd) :: 2]:
        ids = start + tokenizer.encode(topics[name], add_special_tokens=False)
        if len(ids) >= length:
            found.append(ids[:length])
        if len(found) == rows:
            break
    return _as_rows(found, rows, length, "topics")


def pieces(tokenizer: Any, text: str, rows: int, length: int, *, bos: int | None) -> Tensor:
    """Return rows of tokens ``[row, pos]``: consecutive pieces of a text from its beginning.

    Args:
        tokenizer: The model's tokenizer.
        text: The text.
        rows, length: The number of rows, and of tokens in each.
        bos: The token that begins every row, if the model wants one.

    Raises:
        ArgumentError: if the text has too few tokens.
    """
    start = [] if bos is None else [bos]
    ids, step = tokenizer.encode(text, add_special_tokens=False), length - len(start)
    found = [start + ids[i : i + step] for i in range(0, len(ids) - step + 1, step)]
    return _as_rows(found[:rows], rows, length, "text")


def sample_rows(model: Any, rows: int, length: int, *, bos: int) -> Tensor:
    """Sample rows of tokens ``[row, pos]`` from the model itself, token by token, with a fixed
    seed.

    Args:
        model: A bridge of a transformers model.
        rows, length: The number of rows, and of tokens in each.
        bos: The token that begins every row.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        found: Tensor = model.original_model.generate(
            torch.full((rows, 1), bos),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=length - 1,
            min_new_tokens=length - 1,
            pad_token_id=0,
        )
    return found


def _as_rows(found: list[list[int]], rows: int, length: int, source: str) -> Tensor:
    problems = Problems("heads_as_programs")
    rule = f"must be at most {len(found)}: so many rows of {length} tokens has the {source}"
    problems.need(len(found) == rows, "rows", rule, rows, "ask for fewer or shorter ones")
    problems.raise_if_any()
    return torch.tensor(found)


def overlap_and_kl(pattern: Tensor, program: Tensor) -> tuple[float, float]:
    """Return the mean overlap and the mean KL divergence of a program's pattern with a head's,
    ``[#row, query, key]`` each, over rows and over queries after the first."""
    p, q = pattern[:, 1:].double(), program[:, 1:].double().expand_as(pattern[:, 1:])
    shared = torch.minimum(p, q).sum(-1) / torch.maximum(p, q).sum(-1)
    kl = torch.where(p > 0, p * (p.clamp_min(1e-30) / q.clamp_min(1e-30)).log(), 0.0).sum(-1)
    return float(shared.mean()), float(kl.mean())


def trivial_patterns(length: int) -> dict[str, Tensor]:
    """Return the patterns ``[1, query, key]`` that have nothing to fit: first token, previous
    token, uniform."""
    even = torch.ones(length, length).tril()
    first = torch.zeros(length, length)
    first[:, 0] = 1
    before = torch.eye(length).roll(-1, 1).tril()
    before[0, 0] = 1
    kinds = {"first": first, "previous": before, "uniform": even / even.sum(-1, keepdim=True)}
    return {name: one[None] for name, one in kinds.items()}


def _programs(fit: Run, judge: Run, vocabulary: TokenTerms, window: int) -> list[_ProgramHead]:
    """Fit a program to every head and return it with its scores on the judged texts. With a window,
    the head's own attention given the last tokens alone is one more term."""
    found = list[_ProgramHead]()
    fit_terms, judge_terms = (vocabulary.terms(run.batch.inputs) for run in (fit, judge))
    sites = head_sites(fit.model)
    for some in (sites[i : i + _TOGETHER] for i in range(0, len(sites), _TOGETHER)):
        places = [Site(site.layer, "pattern", site.head) for site in some]
        known, seen = (run.at(places) for run in (fit, judge))
        alone = [_alone(run, places, window) for run in (fit, judge)]
        patterns = torch.stack([known[place].cpu() for place in places])
        logs = torch.stack([alone[0][place] for place in places]) if window else None
        strengths = fit_strengths(fit_terms, patterns, logs)
        for site, place, own in zip(some, places, strengths.T, strict=True):
            p, q = known[place].float().cpu(), seen[place].float().cpu()
            on_fit, on_judge = (
                attention(terms, own, logs.get(place))
                for terms, logs in zip((fit_terms, judge_terms), alone, strict=True)
            )
            words = program_words(fit_terms, own[: len(fit_terms.names)], vocabulary)
            found.append(_program_head(site, (p, q), (on_fit, on_judge), words))
    return found


def _noted_programs(
    fit: Tensor, judge: Run, vocabulary: TokenTerms, notes: int, first: int
) -> list[_ProgramHead]:
    """Fit programs that share notes to all heads and return them with their scores.

    Args:
        fit, judge: The rows that they are fitted on, and a model on those that they are judged on.
        vocabulary: What they know about tokens.
        notes: The number of notes.
        first: So many of the fitted rows count for the overlap on them.
    """
    sites = head_sites(judge.model)
    known = torch.cat([_patterns(judge.model, rows) for rows in torch.split(fit, _AT_ONCE)], 1)
    seen, texts = _patterns(judge.model, judge.batch.inputs), Texts(vocabulary, fit)
    programs = fit_noted_programs(texts, known, notes)
    few, others = (Texts(vocabulary, rows) for rows in (fit[:first], judge.batch.inputs))
    on_fit, on_judge = programs.attention(few), programs.attention(others)
    words = programs.words(few, vocabulary.decode)
    return [
        _program_head(site, (p.float(), q.float()), (said, other), told)
        for site, p, q, said, other, told in zip(
            sites, known[:, :first], seen, on_fit, on_judge, words, strict=True
        )
    ]


def _patterns(model: Any, rows: Tensor) -> Tensor:
    """Return the attention of all heads on some rows, ``[head, row, query, key]``, in half
    precision."""
    places = [Site(site.layer, "pattern", site.head) for site in head_sites(model)]
    found = Run(model, next_tokens(rows)).at(places)
    return torch.stack([found[place].cpu().half() for place in places])


def _program_head(
    site: Site, seen: tuple[Tensor, Tensor], said: tuple[Tensor, Tensor], words: str
) -> _ProgramHead:
    """Return a head's program with its scores.

    Args:
        site: The head.
        seen, said: Its attention and its program's on the fitted texts and on the judged ones.
        words: The program in words.
    """
    (p, q), (on_fit, on_judge) = seen, said
    plain = trivial_patterns(q.shape[-1])
    best = max(plain, key=lambda name: overlap_and_kl(p, plain[name])[0])
    overlap, kl = overlap_and_kl(q, on_judge)
    loose = (1 - _LOOSE) * plain[best] + _LOOSE * plain["uniform"]
    about = {
        "layer": site.layer,
        "head": site.head,
        "overlap": overlap,
        "overlap_fitted": overlap_and_kl(p, on_fit)[0],
        "kl": kl,
        "trivial": best,
        "trivial_overlap": overlap_and_kl(q, plain[best])[0],
        "trivial_kl": overlap_and_kl(q, loose)[1],
        "first": float(q[:, 1:, 0].mean()),
        "program": words,
    }
    place = Site(site.layer, "pattern", site.head)
    edit, few = (Replace(place, Array(one, "its program")) for one in (on_judge, on_fit[:_FEW]))
    return _ProgramHead(site, edit, few, about)


def _alone(run: Run, places: list[Site], window: int) -> dict[Site, Tensor]:
    """Return the logarithm of each head's attention when its layer sees the last ``window`` tokens
    alone; empty without a window."""
    found = patterns_of_last_tokens(run, places, window) if window else {}
    return {place: pattern.clamp_min(_FAINT).log() for place, pattern in found.items()}


def _order(few: Run, heads: list[_ProgramHead]) -> list[_ProgramHead]:
    """Order the heads by how little the predictions change when they are replaced by their
    programs.

    The first half is chosen an eighth of all heads at a time, each time beside the heads that are
    already replaced. The second half is in the order of the last such measurement.
    """
    order, left = list[_ProgramHead](), [*heads]
    for _ in range(_STEPS // 2):
        replaced = few.with_(*(head.on_fit for head in order))
        rises = replaced.rises([head.on_fit for head in left], _Apart())
        costs = [float(rise.sum()) for rise in rises]
        few.forget()
        left = [left[i] for i in np.argsort(costs)]
        count = -(-len(heads) // _STEPS)
        order, left = [*order, *left[:count]], left[count:]
    return [*order, *left]


def _curve(judge: Run, edits: list[Replace]) -> list[dict[str, float]]:
    """Return the perplexity for growing shares of replaced heads, taken from the beginning of the
    order and from its end."""
    found, start, rng = [], _losses(judge, []), np.random.default_rng(0)
    for share in _SHARES:
        count = round(share * len(edits))
        losses = _losses(judge, edits[:count])
        draws = rng.choice(losses - start, (_DRAWS, len(start))).mean(1)
        low, high = np.quantile(draws, (0.025, 0.975))
        row = {"share": share, "heads": count, "perplexity": exp(losses.mean())}
        row |= {"rise_low": exp(low) - 1, "rise_high": exp(high) - 1}
        if 0 < share < 1:
            losses = _losses(judge, edits[len(edits) - count :])
        row["worst_first"] = exp(losses.mean())
        found.append(row)
    return found


def _losses(run: Run, edits: list[Replace]) -> NDArray[np.float64]:
    """Return the mean loss of each row, in nats, with the given heads replaced."""
    changed = run.with_(*edits)
    found = changed.by_row(changed.value()).double().cpu().numpy()
    run.forget()
    return np.asarray(found)


def main(
    model: Annotated[str, typer.Argument(help="smollm2-135m or gemma3-270m, or a folder.")],
    rows: Annotated[int, typer.Option(help="Texts to fit on, and texts to judge on.")] = 24,
    length: Annotated[int, typer.Option(help="Tokens of each text.")] = 64,
    window: Annotated[
        int, typer.Option(help="Also a head's own attention by so many last tokens; 0 for not.")
    ] = 0,
    notes: Annotated[
        int, typer.Option(help="Programs that share so many notes on the text; 0 for terms alone.")
    ] = 0,
    own: Annotated[
        int, typer.Option(help="Also fit on so many rows that the model makes up itself.")
    ] = 0,
    judge: Annotated[
        Path | None, typer.Option(help="A text file to judge on, in place of topics.")
    ] = None,
    threads: Annotated[int, typer.Option(help="PyTorch threads.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the table, and draw it.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file for the JSON too.")] = None,
) -> None:
    """Print the JSON, and write it to a file if asked."""
    problems = Problems("heads_as_programs")
    asked = {"rows": (rows, 2), "length": (length, 2), "window": (window, 0), "own": (own, 0)}
    for name, (value, least) in (asked | {"notes": (notes, 0)}).items():
        rule, advice = f"must be at least {least}", "raise it"
        problems.need(value >= least, name, rule, value, advice)
    rule = "must be 0 with notes, which do not read it"
    problems.need(not (notes and window), "window", rule, window, "ask for one of both")
    usual = judge is None and own == notes == window == 0
    rule = "must go without --judge, --own, --notes and --window, as the kept table does"
    problems.need(not keep or usual, "keep", rule, keep, "leave it out, or name a file with --out")
    problems.raise_if_any()
    text = None if judge is None else read_text(judge, "judge")
    torch.set_num_threads(threads)
    subject = pl.load(model)
    tokenizer: Any = subject.tokenizer
    bos = tokenizer.bos_token_id
    given = texts(tokenizer, rows, length, odd=False, bos=bos)
    others = (
        texts(tokenizer, rows, length, odd=True, bos=bos)
        if text is None
        else pieces(tokenizer, text, rows, length, bos=bos)
    )
    made = given[:0]
    with evaluating(subject):
        if own:
            made = sample_rows(subject, own, length, bos=int(given[0, 0]) if bos is None else bos)
        fit, judged = given, Run(subject, next_tokens(others))
        if notes:
            fit = torch.cat([given, further_rows(tokenizer, others, bos=bos), made])
        elif own:
            generator = torch.Generator().manual_seed(0)
            given = fit = torch.cat([made, given])[torch.randperm(own + rows, generator=generator)]
        words = TokenTerms(fit, lambda token: tokenizer.decode([token]), subject.W_E)
        heads = (
            _noted_programs(fit, judged, words, notes, rows)
            if notes
            else _programs(Run(subject, next_tokens(fit)), judged, words, window)
        )
        order = _order(Run(subject, next_tokens(given[:_FEW])), heads)
        steps = _curve(judged, [head.edit for head in order])
    told = {
        "window": window,
        "notes": notes,
        "own": own,
        "judged": "topics" if judge is None else judge.name,
    }
    found = {**_summary(model, heads, order, steps), **told}
    if keep:
        keep_table(found)
    write_result(found, out)


def keep_table(found: Mapping[str, Any]) -> None:
    """Write the result, rounded and without the programs' words, to its table, and draw the figure
    of all tables again."""

    def round_values(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: round_values(one) for key, one in value.items() if key != "program"}
        if isinstance(value, list):
            return [round_values(one) for one in value]
        return round(value, 4) if isinstance(value, float) else value

    kept = {key: round_values(value) for key, value in found.items() if key != "environment"}
    heads = ",\n".join(json.dumps(one) for one in kept.pop("heads"))
    text = json.dumps(kept)[:-1] + f', "heads": [\n{heads}\n]}}\n'
    (TABLES / f"programs-{found['model']}.json").write_text(text)
    tables = {one["model"]: one for one in kept_tables()}
    shares = {name: pd.DataFrame(one["curve"]) for name, one in tables.items()}
    write_drawing(heads_as_programs_figure(tables), shares, PICTURE)


def kept_tables() -> list[dict[str, Any]]:
    """Return the kept result of each model."""
    return [json.loads(file.read_text()) for file in sorted(TABLES.glob("programs-*.json"))]


def _summary(
    model: str, heads: list[_ProgramHead], order: list[_ProgramHead], steps: list[dict[str, float]]
) -> dict[str, Any]:
    working = [head.about for head in heads if head.about["first"] <= 0.5]
    every = [head.about for head in heads]
    quarter = next(step for step in steps if step["share"] == 0.25)
    replaced = [head.about for head in order[: int(quarter["heads"])]]

    def mean(some: list[dict[str, Any]], key: str) -> float:
        return float(np.mean([one[key] for one in some])) if some else float("nan")

    return {
        "model": model,
        "overlap": mean(every, "overlap"),
        "kl": mean(every, "kl"),
        "overlap_working": mean(working, "overlap"),
        "overlap_fitted": mean(every, "overlap_fitted"),
        "trivial": mean(every, "trivial_overlap"),
        "trivial_working": mean(working, "trivial_overlap"),
        "resting": len(every) - len(working),
        "quarter": quarter["perplexity"] / steps[0]["perplexity"] - 1,
        "quarter_low": quarter["rise_low"],
        "quarter_high": quarter["rise_high"],
        "quarter_resting": sum(one["first"] > 0.5 for one in replaced),
        "curve": steps,
        "heads": [head.about | {"place": place} for place, head in enumerate(order)],
    }


_COLOURS = ("blue", "orange", "green", "red")


def heads_as_programs_figure(tables: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw two panels: for each head, the overlap with its program against that with the best
    trivial pattern; and the rise of perplexity against the share of heads replaced.

    Args:
        tables: Model → the result of ``benchmark heads_as_programs``.
    """
    with style():
        figure = Figure(figsize=size(1.3, len(tables) + 1.2))
        *each, last = figure.subplots(1, len(tables) + 1)
        for axes, colour, (name, found) in zip(each, _COLOURS, tables.items(), strict=False):
            heads = pd.DataFrame(found["heads"])
            for rests, words in ((True, "rests on the first token"), (False, "works")):
                some = heads[(heads["first"] > 0.5) == rests]
                x, y = some["trivial_overlap"], some["overlap"]
                face = PALETTE[colour] if rests else "none"
                axes.scatter(x, y, s=12, marker="s" if rests else "o", label=words, linewidths=0.8,
                             facecolors=face, edgecolors=PALETTE[colour])  # fmt: skip
            axes.axline((0, 0), slope=1, color="0.7", linewidth=0.8)
            axes.set(xlim=(0, 1), ylim=(0, 1), title=name)
            axes.set(xlabel="overlap with a trivial pattern", ylabel="overlap with the program")
            axes.legend(loc="lower right")
            curve = pd.DataFrame(found["curve"])
            rise = 100 * (curve["perplexity"] / curve["perplexity"][0] - 1)
            last.plot(100 * curve["share"], rise, marker="o", color=PALETTE[colour], label=name)
        last.axhline(10, color="0.7", linewidth=0.8)
        last.set(xlabel="heads replaced, %", ylabel="perplexity rises by, %")
        last.set_yscale("symlog", linthresh=10)
        last.set_ylim(bottom=0)
        last.legend(loc="upper left")
    return figure
