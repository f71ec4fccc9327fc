"""Does a pretrained GPT-2 need fewer strings than one from scratch to learn a template task?

Both have GPT-2's shape and are trained alike on n strings of a template task; symbols are tokens of
the vocabulary, those of the test never seen in training. The answer is read from the last position
by a linear layer that both start anew. From scratch means the same configuration with fresh
weights. The full profile needs a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from analyses.figures.dots import accuracy_sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from analyses.papers.template.models import fewest_strings
from prooflens.architectures import quiet_transformers
from prooflens.tasks import TemplateTask, aba_abb
from prooflens.trained import zoo

__all__ = ["pretrained_efficiency", "train_reader"]

_LEVEL = 0.9


class TemplateReader(nn.Module):
    """A GPT-2 with a linear layer that reads the answer at the last position."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.config.n_embd, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """The answer for each row, ``[batch]``."""
        hidden = self.body(tokens, use_cache=False).last_hidden_state
        answer: Tensor = self.head(hidden[:, -1])[:, 0]
        return answer


def train_reader(
    body: Any, task: TemplateTask, *, rows: int, steps: int, batch: int, rate: float, seed: int
) -> float:
    """Train on ``rows`` strings of a task with real labels; return the accuracy on unseen
    symbols."""
    torch.manual_seed(seed)
    device = next(body.parameters()).device
    reader = TemplateReader(body).to(device).train()
    strings = task.sample(rows, seed=seed, device=str(device))
    labels = strings.targets[:, -1, 0]
    optimizer = torch.optim.AdamW(reader.parameters(), lr=rate)
    for _ in range(steps):
        chosen = torch.randint(rows, (min(batch, rows),))
        loss = (reader(strings.inputs[chosen]) - labels[chosen]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
    test = task.unseen().sample(256, seed=seed, device=str(device))
    with torch.no_grad():
        right = reader.eval()(test.inputs).sign() == test.targets[:, -1, 0]
    return float(right.float().mean())


def pretrained_efficiency(setting: Setting) -> Verdict:
    """Test that a pretrained model needs fewer strings (ledger:
    ``template-pretrained-efficiency``)."""
    options = setting.options
    folder, name = str(options.get("model", "")), "GPT-2"
    if not folder and (shipped := zoo.stand_in()) is not None:
        folder, name = str(shipped), zoo.STAND_IN
    if not folder or not Path(folder).exists():
        return Verdict(
            "not run", "This claim needs GPT-2's weights: set the option model to a path."
        )
    table = pd.DataFrame(_rows(setting, folder))
    reached = fewest_strings(table, accuracy=_LEVEL)
    ratio = reached["from scratch"] / reached["pretrained"]
    finite = reached["pretrained"] < float("inf")
    words = (
        f"On {name}, strings needed for {_LEVEL:.0%} on unseen symbols: "
        f"{reached['pretrained']:g} pretrained, {reached['from scratch']:g} from scratch."
    )
    accuracy = {f"{m} {n}": r["accuracy"].tolist() for (m, n), r in table.groupby(["model", "n"])}
    figure = accuracy_sweep(table, x="n", across="training strings n", chance=0.5)
    return Verdict(
        decide(finite and ratio >= 4, finite and ratio >= 2),
        words,
        f"{reached['pretrained']:g} strings against {reached['from scratch']:g}",
        {"needed": {k: str(v) for k, v in reached.items()}, "accuracy": accuracy},
        {"accuracy": table},
        {"accuracy": Drawing(figure, "Accuracy on unseen symbols, pretrained and from scratch.")},
    )


def _rows(setting: Setting, folder: str) -> list[dict[str, Any]]:
    from transformers import GPT2Config, GPT2Model

    options, rows = setting.options, []
    half = min(options["symbols"], GPT2Config.from_pretrained(folder).vocab_size // 2)
    task = aba_abb(train=(0, half), test=(half, 2 * half))
    for seed in setting.seeds:
        for n in options["rows"]:
            for name in ("pretrained", "from scratch"):
                with quiet_transformers():
                    body: Any = GPT2Model.from_pretrained(
                        folder, local_files_only=True, dtype=torch.float32
                    )
                if name == "from scratch":
                    torch.manual_seed(seed)
                    body = GPT2Model(body.config)
                accuracy = train_reader(
                    body.to(setting.device),
                    task,
                    rows=n,
                    steps=options["steps"],
                    batch=options["batch"],
                    rate=options["learning_rate"],
                    seed=seed,
                )
                rows.append({"model": name, "n": n, "seed": seed, "accuracy": accuracy})
    return rows
