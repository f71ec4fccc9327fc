"""Do two scalars a head help a GPT-2 that learns from scratch, also for the seconds they cost?

Three models with fresh weights, one rate, and the same windows of text at the same step:

    without       GPT-2's architecture
    with a, b     the same weights at the start, and the scalars of ``gpt2_scalars`` at 0
    larger        more layers and a larger width, without scalars

They are trained in one process, a step at a time, the next step always by the model that has used
the least wall time: other load on the machine slows all of them alike. When the model with scalars
has taken its steps, all have used its seconds and are compared; the model without scalars also
where it had taken the same number of steps.

One constant rate, which is the authors': it is nobody's best here. Seconds are those of this
machine and of this code. Attention is a fused kernel in none of the three, so that the seconds are
what scalars cost; without scalars it could be one and would be faster. A lower perplexity does not
say what the scalars are used for, and small models say nothing about GPT-2's size, which needs a
GPU and ``--option tokenizer=FOLDER --option text=FILE``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from analyses.figures.dots import points
from analyses.language.corpus import python_sources
from analyses.language.recipe import RECIPE, read_language_recipe
from analyses.language.tokens import encode
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import by_seed, spread, status_of, verdict
from analyses.papers.template.gpt2_scalars import add_scalars, perplexity
from prooflens.architectures import quiet_transformers
from prooflens.errors import Problems
from prooflens.trained import zoo

__all__ = ["Learner", "check", "fresh_gpt2", "from_scratch", "race", "race_verdict", "tokens_of"]

_NAMES = ("without", "with a, b", "larger")


def check(setting: Setting) -> None:
    """Refuse files that do not exist, and sizes that no model can have.

    Raises:
        ArgumentError: naming every option that is unfit.
    """
    problems, o = Problems("claims run"), setting.options
    rule = "must be given together with the other: a folder with tokenizer.json, and a text"
    good = bool(o["tokenizer"]) == bool(o["text"])
    both = f"{o['tokenizer']!r} and {o['text']!r}"
    problems.need(good, "--option tokenizer, text", rule, both, "give both or neither")
    for name, file in (("tokenizer", "tokenizer.json"), ("text", "")):
        there = not o[name] or (Path(o[name]) / file).is_file()
        problems.need(there, f"--option {name}", "must be there", o[name], "mend the path")
    good = o["every"] > 0 and o["steps"] % o["every"] == 0
    problems.need(good, "--option every", "must divide steps", o["every"], f"{o['steps']}")
    for size in ("", "larger_"):
        width, heads = o[f"{size}width"], o[f"{size}heads"]
        good = heads > 0 and width % heads == 0
        problems.need(good, f"--option {size}width", "must be multiples of heads", width, "change")
    problems.raise_if_any()


def fresh_gpt2(options: Mapping[str, Any], vocabulary: int, seed: int, size: str = "") -> Any:
    """A GPT-2 of Hugging Face with fresh weights.

    Args:
        options: The claim's.
        vocabulary: Number of tokens.
        seed: Seed of the weights.
        size: ``larger_`` for the larger model's sizes.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    dropped = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), options["dropout"])
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=options["length"],
        n_embd=options[f"{size}width"],
        n_layer=options[f"{size}layers"],
        n_head=options[f"{size}heads"],
        bos_token_id=0,
        eos_token_id=0,
        **dropped,
    )
    torch.manual_seed(seed)
    with quiet_transformers():
        return GPT2LMHeadModel(config)


class Learner:
    """A language model in training, with the time that its steps have taken.

    Args:
        model: A Hugging Face model; it is changed in place.
        options: The options of the claim.
        seed: Seed of the windows of text.
        scalars: Whether heads get a and b.

    Attributes:
        model: The model.
        steps: The number of steps taken.
        seconds: Wall time of these steps.
        processor: Their processor time in seconds, over all threads.
    """

    def __init__(
        self, model: Any, options: Mapping[str, Any], seed: int, *, scalars: bool = False
    ) -> None:
        self.model = model
        self.model.loss_type = "ForCausalLM"  # else transformers warns that it has to guess
        if scalars:
            chosen = {k: options[k] for k in ("multiplier", "mask_diagonal", "undivided")}
            add_scalars(self.model, **chosen)
        else:
            self.model.set_attn_implementation("eager")
        self.steps, self.seconds, self.processor = 0, 0.0, 0.0
        self._options = options
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=options["learning_rate"])
        self._draw = torch.Generator().manual_seed(seed)

    def step(self, tokens: Tensor) -> None:
        """Take a step on windows of a text ``[token]``; learners of one seed draw the same ones."""
        wall, processor = time.perf_counter(), time.process_time()
        length = self._options["length"]
        starts = torch.randint(
            len(tokens) - length, (self._options["batch"],), generator=self._draw
        )
        windows = torch.stack([tokens[s : s + length] for s in starts.tolist()]).long()
        windows = windows.to(self.model.device)
        loss = self.model.train()(windows, labels=windows, use_cache=False).loss
        self._optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        float(norm)  # waits for a GPU
        self.steps += 1
        self.seconds += time.perf_counter() - wall
        self.processor += time.process_time() - processor


def race(
    learners: Mapping[str, Learner], text: Tensor, held_out: Tensor, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Train until the learner with scalars has taken all its steps, and the others have used as
    many seconds.

    Returns:
        A row for each learner every so many steps (``at`` is the step), and one each at the end
        (``at`` is "end"), with its perplexity on held-out text.
    """
    rows: list[dict[str, Any]] = []

    def measure(name: str, at: int | str) -> None:
        one, device = learners[name], learners[name].model.device
        found = perplexity(one.model, held_out.long().to(device), options["length"])
        rows.append(
            {"model": name, "at": at, "step": one.steps, "perplexity": found}
            | {"seconds": one.seconds, "processor": one.processor}
        )

    def advance(name: str) -> None:
        learners[name].step(text)
        if learners[name].steps % options["every"] == 0:
            measure(name, learners[name].steps)

    plain, scalars = (learners[name] for name in _NAMES[:2])
    for name in learners:
        measure(name, 0)  # what a first call does once is then done
    while scalars.steps < options["steps"]:
        advance(min(learners, key=lambda name: learners[name].seconds))
    for name in learners:
        while learners[name].seconds < scalars.seconds:
            advance(name)
        measure(name, "end")
    while plain.steps < options["steps"]:
        advance("without")
    return rows


def from_scratch(setting: Setting) -> Verdict:
    """Test that scalars lower the perplexity of a GPT-2 that learns from scratch, at equal steps
    and at equal wall time (ledger: ``template-scalars-from-scratch``)."""
    check(setting)
    options = setting.options
    if not options["text"] and zoo.stand_in() is None:
        return Verdict("not run", "code-lm is not there: set the options tokenizer and text.")
    text, held_out, vocabulary = tokens_of(options)

    def make_learner(name: str, seed: int) -> Learner:
        size = "larger_" if name == "larger" else ""
        model = fresh_gpt2(options, vocabulary, seed, size).to(setting.device)
        return Learner(model, options, seed, scalars=name == _NAMES[1])

    return race_verdict(
        setting, text, held_out, {name: partial(make_learner, name) for name in _NAMES}
    )


def race_verdict(
    setting: Setting, text: Tensor, held_out: Tensor, makers: Mapping[str, Callable[[int], Learner]]
) -> Verdict:
    """Run a race for each seed between the learners that the makers build, and return the verdict.

    A seed in which scalars do not help after the same number of steps settles it; then no more
    seeds are run.
    """
    options, length = setting.options, setting.options["length"]
    windows = held_out[: len(held_out) // length * length].view(-1, length)
    windows = windows[:: max(1, windows.numel() // options["tested"])]  # over all held-out files
    rows: list[dict[str, Any]] = []
    for seed in setting.seeds:
        learners = {name: make(seed) for name, make in makers.items()}
        found = race(learners, text, windows.flatten(), options)
        rows += [{**row, "seed": seed} for row in found]
        answer = verdict_of(pd.DataFrame(rows), options["steps"])
        if answer.status == "not reproduced":
            break
    taken = setting.seeds.index(seed) + 1
    if taken == len(setting.seeds):
        return answer
    words = f"{taken} of {len(setting.seeds)} seeds ran: one without a gain settles it."
    return replace(answer, words=f"{answer.words} {words}")


def tokens_of(options: Mapping[str, Any]) -> tuple[Tensor, Tensor, int]:
    """Return the token ids of the text and of its held-out part, and the size of the vocabulary."""
    from tokenizers import Tokenizer

    folder = Path(options["tokenizer"] or str(zoo.stand_in()))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    if options["text"]:
        ids = torch.tensor(tokenizer.encode(Path(options["text"]).read_text("utf-8")).ids)
        cut = int(len(ids) * 0.9)
        return ids[:cut], ids[cut:], vocabulary
    recipe = read_language_recipe(RECIPE)
    corpus = python_sources(held_out=recipe.held_out)
    return encode(tokenizer, corpus.train), encode(tokenizer, corpus.held_out), vocabulary


def verdict_of(table: pd.DataFrame, steps: int) -> Verdict:
    """The verdict on the rows of :func:`race`, with their seeds."""
    end = table[table["at"] == "end"]
    ends = end.pivot(index="seed", columns="model", values="perplexity")
    alike = table[(table["model"] == "without") & (table["at"] == steps)].set_index("seed")
    scalars = ends["with a, b"]
    others = {
        "the same steps": alike["perplexity"],
        "the same seconds": ends["without"],
    }
    if "larger" in ends:
        others["larger, the same seconds"] = ends["larger"]
    gains = {name: (values - scalars).tolist() for name, values in others.items()}
    statements = {name: min(found) > 0 for name, found in gains.items()}
    told = {name: spread(values.tolist(), ".3g") for name, values in others.items()}
    larger = told.get("larger, the same seconds")
    middle = end.groupby("model")[["step", "seconds"]].median()
    taken = ", ".join(f"{name} {middle['step'][name]:.0f}" for name in middle.index)
    words = (
        f"Perplexity on held-out text: {spread(scalars.tolist(), '.3g')} with two scalars a head; "
        f"without, {told['the same steps']} after the same steps and {told['the same seconds']} "
        f"after the same seconds{f'; larger, {larger}' if larger else ''}. Steps in "
        f"{middle['seconds']['with a, b']:.0f} seconds: {taken}."
    )
    key = " against ".join(f"{values.median():.3g}" for values in (scalars, *others.values()))
    figure = points(
        table[table["seconds"] > 0],
        x="seconds",
        across="wall time of training, seconds",
        y="perplexity",
        label="perplexity on held-out text",
    )
    numbers = {
        "gains": gains,
        "lower": statements,
        "perplexity": by_seed(end, ["model"], "perplexity"),
        "after the same steps": alike["perplexity"].tolist(),
        **{name: by_seed(end, ["model"], name) for name in ("step", "seconds", "processor")},
    }
    seen = "Perplexity against wall time of each model: without scalars, with them, and larger."
    status = status_of(statements, needed=["the same steps"])
    name = "perplexity"
    return verdict(
        status, words, key, numbers, name=name, table=table, drawing=Drawing(figure, seen)
    )
