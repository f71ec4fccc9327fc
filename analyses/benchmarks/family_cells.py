"""What is asked of a loaded checkpoint, each thing against transformers or a product by hand.

Every operation takes a :class:`FamilyModel`, raises a refusal of prooflens' own, or returns how far
its numbers are from those of the reference, as a share of the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import prooflens as pl
from analyses.benchmarks.family_cases import GGUF
from prooflens.architectures import quiet_transformers
from prooflens.inspection import prompt_rows
from prooflens.interventions import ablation_outputs

__all__ = ["OPERATIONS", "FamilyModel"]

_ROWS, _LENGTH, _FIRST, _LAST = 4, 12, 4, 58
_LONGER = 24
_TOWER = ("vision", "visual", "audio", "projector", "encoder.")
_LISTS = ("h", "layers", "blocks")
_ATTENTION = ("attn.attention", "self_attn", "self_attention", "attn", "attention")
_OUTPUTS = ("c_proj", "out_proj", "o_proj", "dense", "Wo", "proj", "o")
_FFNS = ("mlp", "ffn", "feed_forward", "block_sparse_moe", "moe", "fc2")
_PROMPT = "w7 w9 w11 w9 w30 w7 w9 w5 w5 w31"


@dataclass(frozen=True)
class FamilyModel:
    """A checkpoint, loaded twice.

    Attributes:
        folder: Where it is.
        model: What ``pl.load`` gave.
        reference: The same from transformers, in float32.
        scratch: An empty folder.
        adapter: The folder of an adapter that is merged; None for none.
    """

    folder: Path
    model: Any
    reference: Any
    scratch: Path
    adapter: Path | None = None

    @cached_property
    def tokenizer(self) -> Any:
        """The folder's tokenizer, as transformers loads it."""
        import transformers

        how = {"gguf_file": GGUF} if (self.folder / GGUF).is_file() else {}
        return transformers.AutoTokenizer.from_pretrained(self.folder, **how)

    @cached_property
    def tokens(self) -> Tensor:
        """Rows of random tokens, none of them special, ``[row, pos]``."""
        generator = torch.Generator().manual_seed(1)
        return torch.randint(_FIRST, _LAST, (_ROWS, _LENGTH), generator=generator)

    @cached_property
    def config(self) -> Any:
        """The configuration of the language model."""
        return self.reference.config.get_text_config()

    @cached_property
    def layers(self) -> list[nn.Module]:
        """The decoder's layers in the reference."""
        for name, module in self.reference.named_modules():
            told = any(part in name for part in _TOWER)
            if isinstance(module, nn.ModuleList) and not told and name.split(".")[-1] in _LISTS:
                return list(module)
        raise LookupError("no layers")

    def attention(self, layer: int) -> nn.Module:
        """A layer's attention in the reference."""
        return _child(self.layers[layer], _ATTENTION)

    def output(self, layer: int) -> nn.Module:
        """Return the output projection of a layer's attention in the reference."""
        return _child(self.attention(layer), _OUTPUTS)

    def ffn(self, layer: int) -> nn.Module:
        """A layer's FFN in the reference."""
        return _child(self.layers[layer], _FFNS)

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Return the reference's logits."""
        found: Tensor = self.reference(input_ids=tokens, use_cache=False).logits
        return found

    @torch.no_grad()
    def streams(self, tokens: Tensor) -> list[Tensor]:
        """Return the reference's output of each layer, ``[row, pos, d_model]``."""
        found: list[Tensor] = []
        with _hook_scope(
            *(
                layer.register_forward_hook(lambda m, a, out: found.append(_tensor(out)))
                for layer in self.layers
            )
        ):
            self.logits(tokens)
        return found

    @cached_property
    def patterns(self) -> list[Tensor]:
        """The reference's attention on the rows, ``[row, head, query, key]``."""
        with torch.no_grad():
            out = self.reference(input_ids=self.tokens, output_attentions=True, use_cache=False)
        found = [one[..., :_LENGTH] for one in out.attentions if one is not None]
        if len(found) != len(self.layers):
            raise LookupError("transformers gives no attention of some layers")
        return found


def logits(of: FamilyModel) -> float:
    """Compare the logits."""
    with torch.no_grad():
        return _off(of.model(of.tokens), of.logits(of.tokens))


def patterns(of: FamilyModel) -> float:
    """Compare the attention patterns of all heads."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(len(of.layers))]
    cache = of.model.run_with_cache(of.tokens)[1]
    return max(_off(cache[name], true) for name, true in zip(names, of.patterns, strict=True))


def stream(of: FamilyModel) -> float:
    """Compare the residual stream after every layer: as its hook gives it, and as the sum of what
    embedding and sublayers write."""
    cache, true = of.model.run_with_cache(of.tokens)[1], of.streams(of.tokens)
    worst = 0.0
    for layer, value in enumerate(true):
        parts = pl.interventions.residual_decomposition(of.model, of.tokens, layer + 1)
        worst = max(worst, _off(torch.stack([*parts.values()]).sum(0), value))
        worst = max(worst, _off(cache[f"blocks.{layer}.hook_resid_post"], value))
    return worst


def attribution(of: FamilyModel) -> float:
    """Compare the sum of the direct contributions with the centred logit of the target, before the
    softcap."""
    batch = pl.next_tokens(of.tokens)
    table = pl.interventions.direct_logit_attribution(of.model, batch)
    found = of.logits(of.tokens).double()
    if cap := getattr(of.config, "final_logit_softcapping", None):
        found = cap * torch.atanh(found / cap)
    centred = found - found.mean(-1, keepdim=True)
    wanted = centred.gather(-1, batch.targets[..., None])[..., 0][batch.mask]
    return abs(float(table["score"].sum()) - float(wanted.mean())) / float(wanted.abs().mean())


def weights(of: FamilyModel) -> float:
    """Compare attention and writes that follow from circuits read from weight files alone."""
    factors = pl.head_weights(of.folder, adapter=of.adapter)
    worst = 0.0
    for layer in range(len(of.layers)):
        x, wrote = attention_in_out(of, layer)
        stack, pattern = factors.layer(layer), of.patterns[layer]
        b_V, total = stack.read_if_there("b_V"), torch.zeros_like(wrote)
        ov = stack.circuit("OV")
        for head in range(factors.n_heads):
            left, right = ov.pair(head)
            values = x @ left
            if b_V is not None:
                values = values + b_V[head * len(b_V) // factors.n_heads]
            total += pattern[:, head] @ values @ right.T
        b_O = stack.read_if_there("b_O")
        worst = max(worst, _off(total if b_O is None else total + b_O, wrote))
        worst = max(worst, _scores_off(of, factors, layer, x))
    embed = of.reference.get_input_embeddings().weight
    unembed = of.reference.get_output_embeddings().weight
    tokens = factors.layer(0).circuit("OV", basis="token").dense(1)
    by_hand = embed @ factors.layer(0).circuit("OV").dense(1) @ unembed.T
    return max(worst, _off(tokens, by_hand))


def ablation(of: FamilyModel) -> float:
    """Compare ablations with hooks that are written by hand: the logits with a head, and with an
    FFN, set to zero, and the rise of the loss with a head set to its mean."""
    layers = len(of.layers)
    head, ffn = (
        pl.interventions.Component("head", 0, 2),
        pl.interventions.Component("ffn", layers - 1),
    )
    found = {
        one.kind: out for one, out in ablation_outputs(of.model, of.tokens, [head, ffn], how="zero")
    }
    heads = int(of.config.num_attention_heads)

    def replace(how: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
        def act(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            z = args[0].clone()
            wide = z.shape[-1] // heads
            mine = slice(2 * wide, 3 * wide)
            z[..., mine] = how(z[..., mine])
            return (z, *args[1:])

        return act

    output = of.output(0)
    with _hook_scope(output.register_forward_pre_hook(replace(torch.zeros_like))):
        worst = _off(found["head"], of.logits(of.tokens))
    with _hook_scope(of.ffn(layers - 1).register_forward_hook(_silent)):
        worst = max(worst, _off(found["ffn"], of.logits(of.tokens)))
    mean = replace(lambda z: z.mean(0, keepdim=True).expand_as(z))
    with _hook_scope(output.register_forward_pre_hook(mean)):
        without = of.logits(of.tokens)
    rise = _losses(without, of.tokens) - _losses(of.logits(of.tokens), of.tokens)
    told = float(pl.ablate(of.model, of.tokens, [head])["score"].iloc[0])
    return max(worst, abs(told - float(rise)))


def padding(of: FamilyModel) -> float:
    """Compare padded rows of several lengths with the reference on each row alone."""
    name, worst = f"blocks.{len(of.layers) - 1}.hook_resid_post", 0.0
    for side in ("left", "right"):
        lengths = [_LENGTH - 3 * i for i in range(_ROWS)]
        ids, mask = torch.zeros(2, _ROWS, _LENGTH, dtype=torch.long)
        for row, n in enumerate(lengths):
            at = slice(_LENGTH - n, None) if side == "left" else slice(n)
            ids[row, at], mask[row, at] = of.tokens[row, :n], 1
        given = {"input_ids": ids, "attention_mask": mask}
        store = pl.extract(of.model, given, [name], of.scratch / side)
        for rows in store.batches(1):
            row = int(rows.rows[0])
            true = of.streams(of.tokens[row : row + 1, : lengths[row]])[-1]
            worst = max(worst, _off(torch.from_numpy(rows.activation(name)), true))
    return worst


def texts(of: FamilyModel) -> float:
    """Compare the token ids of prompts and of a text's rows with those of the folder's
    tokenizer."""

    tokenizer = of.tokenizer
    (row,) = prompt_rows(of.model.card, [_PROMPT])
    wanted = tokenizer(_PROMPT)["input_ids"]
    file = of.scratch / "text.txt"
    file.write_text(" ".join([_PROMPT] * 250))
    found = pl.read_rows(file, of.model.card).tokens.flatten().tolist()
    whole = tokenizer(file.read_text(), add_special_tokens=False)["input_ids"]
    same = row[0].tolist() == wanted and found == whole[: len(found)]
    return 0.0 if same and found else math.inf


def roles(of: FamilyModel) -> float:
    """Look for roles, and compare the attention that they rest on."""
    generator = torch.Generator().manual_seed(2)
    half = torch.randint(_FIRST, _LAST, (8, _LONGER // 2), generator=generator)
    rows = torch.cat([half, half], 1)
    table = pl.find_roles(of.model, rows, profile="language")
    if not {"role", "status"} <= set(table.columns):
        return math.inf
    keys = pl.attention.attention_table(of.model, of.tokens)
    previous = keys[(keys["target"] == "previous") & (keys["metric"] == "attention_mass")]
    worst = 0.0
    for layer, true in enumerate(of.patterns):
        shares = true / true.sum(-1, keepdim=True)
        mass = shares[..., 1:, :-1].diagonal(dim1=-2, dim2=-1).mean((0, 2))
        mine = previous[previous["layer"] == layer].sort_values("head")["score"]
        worst = max(worst, _off(torch.tensor(mine.to_numpy()), mass))
    return worst


def export(of: FamilyModel) -> float:
    """Write the model out, load it with transformers and with prooflens, and compare logits and the
    tokenizer's ids."""
    import transformers

    folder = pl.export(of.model, of.scratch / "out")
    with quiet_transformers(), torch.no_grad():
        options = {"dtype": torch.float32, "attn_implementation": "eager"}
        again = type(of.reference).from_pretrained(folder, **options).eval()
        worst = _off(again(input_ids=of.tokens).logits, of.logits(of.tokens))
        worst = max(worst, _off(pl.load(folder)(of.tokens), of.logits(of.tokens)))
        before = of.tokenizer(_PROMPT)["input_ids"]
        after = transformers.AutoTokenizer.from_pretrained(folder)(_PROMPT)["input_ids"]
    return worst if before == after else math.inf


OPERATIONS: Mapping[str, Callable[[FamilyModel], float]] = {
    "logits": logits,
    "patterns": patterns,
    "stream": stream,
    "attribution": attribution,
    "weights": weights,
    "ablation": ablation,
    "padding": padding,
    "texts": texts,
    "roles": roles,
    "export": export,
}
"""Name of an operation, which is a column of the table → the function that runs and compares it."""


def _child(module: nn.Module, names: Sequence[str]) -> nn.Module:
    known: dict[str, nn.Module] = dict(module.named_modules())
    for name in names:
        if name in known:
            return known[name]
    raise LookupError(f"no {names[0]} in {type(module).__name__}")


@contextmanager
def _hook_scope(*handles: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensor(out: Any) -> Tensor:
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found


def _silent(module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
    """Return an FFN's output without what it computes: zeros, or the stream for those FFNs that add
    to the stream themselves."""
    adds = type(module).__name__ in ("BloomMLP", "MptMLP")
    whole = _tensor(out)
    nothing = args[1] if adds else torch.zeros_like(whole)
    return (nothing, *out[1:]) if isinstance(out, tuple) else nothing


def _off(found: Tensor, true: Tensor) -> float:
    if found.shape != true.shape:
        return math.inf
    wide = true.detach().double()
    gap = (found.detach().double() - wide).abs().max()
    off = float(gap / wide.abs().max().clamp_min(1e-30))
    return off if math.isfinite(off) else math.inf


def _losses(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens, in nats."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def attention_in_out(of: FamilyModel, layer: int) -> tuple[Tensor, Tensor]:
    """Return what a layer's attention reads and what it writes, before any norm that follows it."""
    seen: dict[str, Tensor] = {}

    def look(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        seen["x"] = args[0] if args else kwargs["hidden_states"]
        seen["out"] = _tensor(out)
        if type(module).__name__ == "BloomAttention":  # it adds the stream itself
            seen["out"] = seen["out"] - args[1]

    with _hook_scope(of.attention(layer).register_forward_hook(look, with_kwargs=True)):
        of.logits(of.tokens)
    return seen["x"], seen["out"]


def _scores_off(of: FamilyModel, factors: Any, layer: int, x: Tensor) -> float:
    """Return how far the attention pattern that follows from the QK circuits at every lag is from
    the reference's."""
    stack, true, n = factors.layer(layer), of.patterns[layer], x.shape[1]
    lags = range(n) if factors.layout.rope else (0,)
    circuits = [stack.circuit("QK", lag=lag) for lag in lags]
    b_K, module = stack.read_if_there("b_K"), of.attention(layer)
    scale = float(getattr(module, "scaling", None) or 1 / math.sqrt(factors.d_head))
    scale = 1.0 if type(module).__name__ == "GPTNeoSelfAttention" else scale
    found = torch.zeros_like(true)
    lag = torch.arange(n)[:, None] - torch.arange(n)
    for head in range(factors.n_heads):
        scores = torch.full((len(x), n, n), -torch.inf)
        for circuit in circuits:
            left, right = circuit.pair(head)
            query, key, bias = x @ left, x @ right, circuit.inner_bias(head)
            query = query if bias is None else query + bias
            key = key if b_K is None else key + b_K[head * len(b_K) // factors.n_heads]
            here = (lag == circuit.lag) if factors.layout.rope else lag >= 0
            scores = torch.where(here, query @ key.mT, scores)
        scores = scores * scale
        if stack.has("q_gain"):
            scores = scores / _query_key_norms(stack, factors, head, x, of.config.rms_norm_eps)
        if cap := getattr(of.config, "attn_logit_softcapping", None):
            scores = cap * torch.tanh(scores / cap)
        if getattr(of.config, "alibi", factors.layout.family == "BLOOM"):
            slope = 2.0 ** (-8 * (head + 1) / factors.n_heads)
            if factors.layout.family == "Falcon":
                slope *= 2 * scale  # before scores are scaled, and again with the mask
            scores = scores + slope * torch.arange(n)
        scores = scores.where(true[:, head] > 0, -torch.inf)  # windows are the reference's
        if stack.has("sinks"):
            sink = stack.read("sinks")[head].expand(len(x), n, 1)
            found[:, head] = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
        else:
            found[:, head] = scores.softmax(-1)
    return _off(found, true)


def _query_key_norms(stack: Any, factors: Any, head: int, x: Tensor, eps: float) -> Tensor:
    """Return the product of the denominators of the norms on queries and keys, ``[row, query,
    key]``."""
    q = torch.einsum("rpd,hdk->rphk", x, stack.W_Q)
    k = torch.einsum("rpd,hdk->rphk", x, stack.W_K)
    together = stack.read("q_gain").numel() > factors.d_head  # over all heads at once
    q, k = (
        part.flatten(2) if together else part[:, :, head * part.shape[2] // factors.n_heads]
        for part in (q, k)
    )
    rms_q, rms_k = ((part.square().mean(-1) + eps).sqrt() for part in (q, k))
    return rms_q[:, :, None] * rms_k[:, None]
