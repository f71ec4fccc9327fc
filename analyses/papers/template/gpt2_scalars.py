"""Two trainable scalars per head for a Hugging Face GPT-2 or Llama: do they help it to learn?

    score of head h    ⟨q_t, k_j⟩/√d_head + a_h ⟨x_t, x_j⟩/d_model
    output             + Σ_h b_h · pattern_h @ x

x is what the attention reads (after the norm). a and b start at 0, so the function is unchanged;
GPT-2 small gets 2 × 144. Nothing of their code is copied: a pre-hook notes x, an attention function
of Transformers' interface adds a's term, and a hook adds b's. ``mask_diagonal`` leaves j = t out of
a's term, and ``undivided`` drops the division by d_model.

The key-value cache would need the x of earlier calls: pass ``use_cache=False``. The claim needs the
user's text and, for its full size, a GPU; one machine's wall time is not the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from analyses.figures.dots import accuracy_sweep
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import decide
from prooflens.architectures import quiet_transformers
from prooflens.errors import ArgumentError, Problems
from prooflens.trained import zoo

__all__ = ["IdentityScalars", "add_scalars", "language_model"]

_ATTENTION = "prooflens_identity"


class IdentityScalars(nn.Module):
    """The scalars a and b of one attention layer, with the hooks through which they act.

    Attributes:
        a, b: The scalars, ``[head]``, starting at 0.
    """

    def __init__(self, heads: int, multiplier: float, mask_diagonal: bool, undivided: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.zeros(heads))
        self.multiplier, self.mask_diagonal, self.undivided = multiplier, mask_diagonal, undivided
        self.x: Tensor | None = None
        self.seen: Tensor | None = None

    def scores(self, scores: Tensor) -> Tensor:
        """Add the term of a to scores ``[batch, head, query, key]``.

        Raises:
            ArgumentError: where keys are there whose x was not noted (a key-value cache).
        """
        x = self.x
        if x is None or scores.shape[-2:] != (x.shape[1], x.shape[1]):
            raise ArgumentError("identity scalars need all keys' inputs: pass use_cache=False")
        products = x @ x.mT / (1 if self.undivided else x.shape[-1])
        if self.mask_diagonal:
            products = products.tril(-1)  # what is above is the future
        return scores + self.multiplier * self.a[:, None, None] * products[:, None]

    def note(self, pattern: Tensor) -> None:
        """Store what b writes, Σ_h b_h · pattern_h @ x, ``[batch, pos, d_model]``, for the hook
        that adds it."""
        mixed = torch.einsum("h,bhqk->bqk", self.multiplier * self.b, pattern)
        self.seen = mixed @ self.x if self.x is not None else None


def add_scalars(
    model: Any,
    *,
    multiplier: float = 10.0,
    mask_diagonal: bool = False,
    undivided: bool = False,
) -> nn.ModuleList:
    """Give every head of a Hugging Face GPT-2 or Llama its two scalars, in place.

    Args:
        model: A ``GPT2Model`` or ``GPT2LMHeadModel``, or Llama's.
        multiplier: a and b act multiplied by this (a larger learning rate for them).
        mask_diagonal: Leave a token's match with itself out of a's term.
        undivided: Let a's term be a ⟨x_t, x_j⟩, without the division by d_model.

    Returns:
        The scalars, a module a layer; they are the model's parameters too.

    Raises:
        ArgumentError: for anything but these, or one that has scalars already.
    """
    from transformers import (
        AttentionInterface,
        AttentionMaskInterface,
        GPT2PreTrainedModel,
        LlamaPreTrainedModel,
    )
    from transformers.masking_utils import eager_mask

    problems = Problems("add_scalars")
    good = isinstance(model, (GPT2PreTrainedModel, LlamaPreTrainedModel))
    rule = "must be a Hugging Face GPT-2 or Llama"
    problems.need(good, "model", rule, type(model).__name__, "load it with transformers")
    problems.need(multiplier > 0, "multiplier", "must be positive", multiplier, "raise it")
    problems.raise_if_any()
    inner = model.base_model
    attentions = (
        [block.self_attn for block in inner.layers]
        if isinstance(model, LlamaPreTrainedModel)
        else [block.attn for block in inner.h]
    )
    twice = any(hasattr(attention, "identity") for attention in attentions)
    problems.need(not twice, "model", "must have no scalars yet", "scalars", "add them once")
    problems.raise_if_any()
    AttentionInterface.register(_ATTENTION, _attend)
    AttentionMaskInterface.register(_ATTENTION, eager_mask)  # without it padding is ignored
    _own_config(model)
    model.set_attn_implementation(_ATTENTION)
    device, heads = next(model.parameters()).device, model.config.num_attention_heads
    found = nn.ModuleList()
    for attention in attentions:
        scalars = IdentityScalars(heads, multiplier, mask_diagonal, undivided).to(device)
        attention.identity = scalars
        attention.register_forward_pre_hook(_keep_input, with_kwargs=True)
        attention.register_forward_hook(_add_seen)
        found.append(scalars)
    return found


def _own_config(model: Any) -> None:
    """Give the model a configuration of its own, so that other models built from the same one keep
    their attention."""
    old = model.config
    new = deepcopy(old)
    for module in model.modules():
        if getattr(module, "config", None) is old:
            module.config = new


def _keep_input(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    module.identity.x = args[0] if args else kwargs["hidden_states"]


def _add_seen(module: Any, _args: Any, output: Any) -> Any:
    scalars = module.identity
    seen, scalars.seen, scalars.x = scalars.seen, None, None
    return (output[0] + seen, *output[1:])


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Softmax attention with the term of a, called through Transformers' attention interface."""
    n, scale = query.shape[-2], query.shape[-1] ** -0.5 if scaling is None else scaling
    shared = query.shape[1] // key.shape[1]  # heads that read the same keys and values
    key, value = (part.repeat_interleave(shared, dim=1) for part in (key, value))
    scores = module.identity.scores(query @ key.mT * scale)
    if attention_mask is None:
        future = torch.ones(n, n, dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
    else:
        scores = scores + attention_mask  # causal, and without padding
    pattern = nn.functional.dropout(scores.softmax(-1), p=dropout, training=module.training)
    module.identity.note(pattern)
    return (pattern @ value).transpose(1, 2), pattern


def language_model(setting: Setting) -> Verdict:
    """Test that 288 scalars lower GPT-2's perplexity (ledger: ``template-gpt2-scalars``)."""
    options = setting.options
    given = {n: str(options.get(n, "")) for n in ("model", "text")}
    shipped = None if any(given.values()) else zoo.stand_in()
    missing = [n for n, path in given.items() if not path or not Path(path).exists()]
    if missing and shipped is None:
        told = " and ".join(missing)
        return Verdict("not run", f"This claim needs the user's {told}: set the option to a path.")
    from transformers import AutoTokenizer

    model = given["model"] if shipped is None else str(shipped)
    tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    text = Path(given["text"]).read_text() if shipped is None else _unseen()
    tokens = torch.tensor(tokenizer(text)["input_ids"])
    rows: list[dict[str, Any]] = []
    name = "GPT-2" if shipped is None else zoo.STAND_IN
    for seed in setting.seeds:
        for scalars in (False, True):
            label = f"{name} + a, b" if scalars else name
            rows += _train_model({**options, "model": model}, setting.device, tokens, label, seed)
    return _judge(pd.DataFrame(rows), name)


def _unseen() -> str:
    """Return the Python sources that were held out from the shipped language model's training."""
    from analyses.language.corpus import python_sources
    from analyses.language.recipe import RECIPE, read_language_recipe

    recipe = read_language_recipe(RECIPE)
    return "\n".join(python_sources(held_out=recipe.held_out).held_out)


def _train_model(
    options: Mapping[str, Any], device: str, tokens: Tensor, name: str, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield the perplexity on the last tenth of the text during training on the rest."""
    from transformers import GPT2LMHeadModel

    with quiet_transformers():
        model: Any = GPT2LMHeadModel.from_pretrained(
            options["model"], local_files_only=True, dtype=torch.float32
        )
    model.to(device)
    model.loss_type = "ForCausalLM"  # else transformers warns that it has to guess
    if name.endswith("a, b"):
        add_scalars(model, multiplier=options["multiplier"], mask_diagonal=options["mask_diagonal"])
    length, cut = min(options["length"], model.config.n_positions), int(len(tokens) * 0.9)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options["learning_rate"])
    for step in range(options["steps"] + 1):
        if step % options["every"] == 0:
            value = perplexity(model, tokens[cut:].to(device), length)
            yield {"model": name, "seed": seed, "step": step, "perplexity": value}
        starts = torch.randint(cut - length, (options["batch"],), generator=generator)
        batch = torch.stack([tokens[s : s + length] for s in starts.tolist()]).to(device)
        model.train()
        loss = model(batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def perplexity(model: Any, tokens: Tensor, length: int) -> float:
    """The perplexity: exp of the mean loss over consecutive windows of ``length`` tokens."""
    model.eval()
    windows = tokens[: len(tokens) // length * length].view(-1, length)
    parts = [windows[i : i + 8] for i in range(0, len(windows), 8)]
    losses = [len(rows) * model(rows, labels=rows, use_cache=False).loss for rows in parts]
    return float((torch.stack(losses).sum() / len(windows)).exp())


def _judge(table: pd.DataFrame, name: str) -> Verdict:
    last = table[table["step"] == table["step"].max()].set_index("seed")
    plain = last[last["model"] == name]["perplexity"]
    scalar = last[last["model"] != name]["perplexity"]
    gains = (plain - scalar).tolist()
    good = sum(gain > 0 for gain in gains)
    mean = float(plain.mean()), float(scalar.mean())
    figure = accuracy_sweep(
        table,
        x="step",
        across="optimiser step",
        y="perplexity",
        label="perplexity",
        log_x=False,
    )
    return Verdict(
        decide(good == len(gains), bool(good)),
        f"On {name}, perplexity on held-out text after training: {mean[0]:.2f} without and "
        f"{mean[1]:.2f} with the scalars; lower with them in {good} of {len(gains)} seeds.",
        f"{mean[0]:.2f} → {mean[1]:.2f} perplexity",
        {"plain": plain.tolist(), "scalars": scalar.tolist(), "gains": gains},
        {"perplexity": table},
        {"perplexity": Drawing(figure, "Perplexity with and without the scalars.")},
    )
