"""Do two scalars a head help a language model that people use to learn a text?

A pretrained model twice, with and without the scalars of :mod:`.gpt2_scalars`, fine-tuned on the
same windows as in :mod:`.gpt2_from_scratch`, with its seconds and its equal steps. At the start
both are the same function. Fine-tuning is short: this says what scalars add to a model that has
learned without them, and nothing of one that grew up with them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from analyses.papers.base import Setting, Verdict
from analyses.papers.template.gpt2_from_scratch import Learner, race_verdict, tokens_of
from prooflens.architectures import quiet_transformers
from prooflens.errors import CheckpointError, MissingDependencyError, Problems
from prooflens.trained import folder_of

__all__ = ["fine_tuned"]


def fine_tuned(setting: Setting) -> Verdict:
    """Test that scalars lower the perplexity of a pretrained model that is fine-tuned, at equal
    steps and at equal wall time (ledger: ``template-scalars-fine-tuned``).

    Raises:
        ArgumentError: for a text that is not there, and steps that are not read at their end.
    """
    problems, o = Problems("claims run"), setting.options
    there = not o["text"] or Path(o["text"]).is_file()
    problems.need(there, "--option text", "must be there", o["text"], "mend the path")
    good = o["every"] > 0 and o["steps"] % o["every"] == 0
    problems.need(good, "--option every", "must divide steps", o["every"], f"{o['steps']}")
    problems.raise_if_any()
    try:
        folder = Path(folder_of(o["model"]))
    except (CheckpointError, MissingDependencyError) as error:
        return Verdict("not run", f"Needs a pretrained model: {error}.")
    if not (folder / "tokenizer.json").is_file():
        return Verdict("not run", f"Needs a pretrained model's folder: {folder} has no tokenizer.")

    def make_learner(scalars: bool, seed: int) -> Learner:
        from transformers import AutoModelForCausalLM

        with quiet_transformers():
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, dtype=torch.float32
            )
        return Learner(model.to(setting.device), o, seed, scalars=scalars)

    text, held_out, _ = tokens_of({**o, "tokenizer": folder})
    makers = {"without": partial(make_learner, False), "with a, b": partial(make_learner, True)}
    return race_verdict(setting, text, held_out, makers)
