"""Train a language model, so that it can be stopped and resumed, and write what is shipped.

    PARTIAL/                 while it is trained
      text.safetensors       the ids of the text and of what is held out
      tokenizer.json         the vocabulary
      state.safetensors      weights, moments, step; replaced at every save
      log.jsonl              a line a save: step, tokens, processor time, measurements
      step-N.safetensors     weights kept on the way
    OUT/                     a GPT-2 folder of Hugging Face's, with tokenizer, card and numbers
      step-N/                the same of the weights kept on the way

A resumed training gives what an uninterrupted one gives on the same machine with the same number of
threads; with another number sums are taken in another order, and weights drift apart.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from analyses.language.corpus import python_sources
from analyses.language.measure import measure
from analyses.language.model import GPT2
from analyses.language.recipe import LanguageRecipe, LanguageTraining
from analyses.language.rows import IGNORED, rows_of
from analyses.language.tokens import encode, train_tokenizer
from prooflens.architectures import read_tensors, write_tensors
from prooflens.errors import CheckpointError, need
from prooflens.files import append_line, output_file
from prooflens.trained import stop_asked

__all__ = ["LanguageRun", "prepare", "take_steps"]

_STATE, _TEXT, _LOG = "state.safetensors", "text.safetensors", "log.jsonl"


def prepare(recipe: LanguageRecipe, folder: Path) -> None:
    """Read the text, train the vocabulary and write both into ``folder``, unless they are there.

    Raises:
        ArgumentError: if the installed torch has no Muon.
    """
    rule = "must be 2.9 or later to train a language model: earlier ones have no Muon"
    good = hasattr(torch.optim, "Muon")
    need("training", good, "torch", rule, torch.__version__, "install a newer one")
    if (folder / _TEXT).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder_of_text = Path(recipe.folder) if recipe.folder else None
    corpus = python_sources(held_out=recipe.held_out, folder=folder_of_text)
    tokenizer = train_tokenizer(corpus.train, recipe.model.vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"))
    parts = {"train": encode(tokenizer, corpus.train)}
    parts["held_out"] = encode(tokenizer, corpus.held_out)
    about = {"origin": corpus.origin, "sha256": corpus.sha256}
    about |= {"files": str(len(corpus.train)), "files_held_out": str(len(corpus.held_out))}
    about |= {"characters": str(sum(map(len, corpus.train)))}
    with output_file(folder / _TEXT, overwrite=True) as draft:
        write_tensors(parts, draft, about)


class LanguageRun:
    """A training under way.

    Args:
        recipe: What is trained.
        folder: Where :func:`prepare` left the text and where states are saved.
        resume: Go on from the saved state, if there is one.

    Raises:
        CheckpointError: for a state of another recipe.
    """

    def __init__(self, recipe: LanguageRecipe, folder: Path, *, resume: bool = False) -> None:
        self.recipe, self.folder, self.step = recipe, folder, 0
        """The recipe, the folder, and how many steps were taken."""
        texts, self.about = read_tensors(folder / _TEXT)
        self.text, self.held_out = texts["train"], texts["held_out"]
        self.model = GPT2(recipe.model, recipe.training.seed)
        self.seconds, self._since = 0.0, time.process_time()
        """Processor seconds of the steps before the last save."""
        self._optimizers = _optimizers(recipe.training, self.model.weights_by_name())
        if resume and (folder / _STATE).is_file():
            self._load()

    def advance(self) -> float:
        """Take one step and return its loss in nats a token."""
        recipe, stage = self.recipe, self.recipe.stage(self.step)
        seed = recipe.training.seed
        inputs, targets = rows_of(
            self.text,
            stage.rows,
            stage.length,
            repeated=stage.repeated,
            shuffled=stage.shuffled,
            seed=[seed, self.step],
        )
        room = recipe.model.context - stage.length
        offset = int(np.random.default_rng([seed, self.step, 1]).integers(0, room + 1))
        share = recipe.training.share(self.step, recipe.steps)
        for optimizer, _ in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = share * optimizer.defaults["lr"]
        logits = self.model(inputs, offset).flatten(0, 1)
        loss = functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED)
        self.model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.training.clip)
        for optimizer, _ in self._optimizers:
            optimizer.step()
        self.step += 1
        if self.step in recipe.training.kept:
            self._keep()
        return float(loss.detach())

    def save(self) -> dict[str, Any]:
        """Save the state, measure the model, and return the line that was added to the log."""
        self.seconds += time.process_time() - self._since
        header = {"recipe": self.recipe.sha256, "step": str(self.step)}
        header["seconds"] = repr(self.seconds)
        with output_file(self.folder / _STATE, overwrite=True) as draft:
            write_tensors(self._state(), draft, header)
        line = {
            "step": self.step,
            "tokens": self.recipe.tokens_until(self.step),
            "seconds": round(self.seconds, 1),
        }
        found = line | measure(self.model, self.held_out).to_dict()
        append_line(self.folder / _LOG, json.dumps(found).encode())
        self._since = time.process_time()
        return found

    def log(self) -> list[dict[str, Any]]:
        """The lines of the log so far, oldest first."""
        text = (self.folder / _LOG).read_text("utf-8") if (self.folder / _LOG).is_file() else ""
        return [json.loads(line) for line in text.splitlines()]

    def _keep(self) -> None:
        with output_file(self.folder / f"step-{self.step}.safetensors", overwrite=True) as draft:
            write_tensors(self.model.weights_by_name(), draft)

    def _state(self) -> dict[str, Tensor]:
        tensors = {
            f"weight {name}": weight for name, weight in self.model.weights_by_name().items()
        }
        for optimizer, named in self._optimizers:
            for name, weight in named.items():
                for kind, value in optimizer.state[weight].items():
                    tensors[f"{kind} {name}"] = value
        return tensors

    def _load(self) -> None:
        tensors, header = read_tensors(self.folder / _STATE)
        if header.get("recipe") != self.recipe.sha256:
            raise CheckpointError(
                f"{self.folder} holds a training by another recipe: begin anew with --overwrite"
            )
        self.step, self.seconds = int(header["step"]), float(header["seconds"])
        with torch.no_grad():
            for name, weight in self.model.weights_by_name().items():
                weight.copy_(tensors[f"weight {name}"])
        for optimizer, named in self._optimizers:
            for name, weight in named.items():
                kinds = ("step", "exp_avg", "exp_avg_sq", "momentum_buffer")
                found = {k: tensors[f"{k} {name}"] for k in kinds if f"{k} {name}" in tensors}
                if found:
                    optimizer.state[weight] = found


def _optimizers(
    training: LanguageTraining, named: dict[str, Tensor]
) -> list[tuple[torch.optim.Optimizer, dict[str, Tensor]]]:
    """Return Muon for the layers' matrices and AdamW for embeddings, norms and biases, each with
    its parameters."""
    matrices = {name: w for name, w in named.items() if w.ndim == 2 and ".h." in name}
    rest = {name: w for name, w in named.items() if name not in matrices}
    muon = torch.optim.Muon(
        list(matrices.values()), lr=training.matrix_rate, weight_decay=training.weight_decay
    )
    adam = torch.optim.AdamW(
        list(rest.values()),
        lr=training.learning_rate,
        betas=training.betas,
        weight_decay=0.0,
        fused=True,
    )
    return [(muon, matrices), (adam, rest)]


def take_steps(
    training: LanguageRun, *, minutes: float, told: Callable[[dict[str, Any]], None]
) -> Iterator[int]:
    """Take the remaining steps; save every ``minutes`` minutes and at the end.

    Args:
        training: The training.
        minutes: Minutes between two saves.
        told: A function that is called with every new line of the log.

    Raises:
        KeyboardInterrupt: after Ctrl-C or a termination signal, with the state saved.
    """
    last = time.monotonic()
    with stop_asked() as asked:
        while training.step < training.recipe.steps:
            training.advance()
            if asked() or time.monotonic() - last > 60 * minutes:
                told(training.save())
                last = time.monotonic()
            if asked():
                raise KeyboardInterrupt
            yield training.step
    told(training.save())
