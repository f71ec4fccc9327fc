"""TransformerLens' hook names for blocks of one's own that are written around
``nn.MultiheadAttention`` with a norm before each sublayer:

    x = x + attention(norm1(x))      x = x + mlp(norm2(x))

A block is the module that holds an attention, however deep, and a norm beside it. What stands in it
besides attention, norms and dropout is its MLP: one submodule, or linear layers in order. Nothing
is run to find them: whether the names are right is for the conformance check of
:func:`interp.models.wrap.wrap`, which adds up what they say.
"""

from __future__ import annotations

from torch import nn

from interp.errors import Problems
from interp.models.open_attention import OpenAttention


def block_names(module: nn.Module) -> dict[str, str]:
    """Hook name → site, for :func:`interp.models.wrap.wrap`; empty without such blocks.

    Args:
        module: A module from :func:`interp.models.open_attention.open_attention`.

    Raises:
        ArgumentError: for attention with the batch on the second axis.
    """
    problems, names = Problems("block_names"), dict[str, str]()
    parts = dict(module.named_modules())
    found = [path for path, part in parts.items() if isinstance(part, OpenAttention)]
    for number, path in enumerate(found):
        attention = parts[path]
        rule, advice = "must have batch_first=True", "build it so, or name the sites"
        problems.need(bool(attention.batch_first), path or "module", rule, False, advice)
        whole = _around(path, parts)
        if whole is not None:
            names |= _names(f"blocks.{number}", whole, path, parts[whole])
    problems.raise_if_any()
    return names


def _around(path: str, parts: dict[str, nn.Module]) -> str | None:
    """The innermost module around an attention with a norm beside it; None without one."""
    while path:
        path = path.rpartition(".")[0]
        if any(_is_norm(child) for child in parts[path].children()):
            return path
    return None


def _names(block: str, whole: str, attention: str, module: nn.Module) -> dict[str, str]:
    start = f"{whole}." if whole else ""
    names = {f"{block}.hook_resid_pre": f"{whole}:in", f"{block}.hook_resid_post": whole}
    for name in ("q", "k", "v", "z", "pattern"):
        names[f"{block}.attn.hook_{name}"] = f"{attention}.{name}"
    names[f"{block}.attn.hook_attn_scores"] = f"{attention}.scores"
    inside = attention.removeprefix(start).partition(".")[0]
    own = f"{start}{inside}"
    names[f"{block}.hook_attn_out"] = f"{own}:out[0]" if own == attention else own
    children = [(name, part) for name, part in module.named_children() if name != inside]
    norms = [name for name, part in children if _is_norm(part)]
    rest = [
        (name, part)
        for name, part in children
        if not _is_norm(part) and any(True for _ in part.parameters())
    ]
    if len(norms) > 1:
        names[f"{block}.hook_resid_mid"] = f"{start}{norms[1]}:read"
    if len(rest) > 1 and all(isinstance(part, nn.Linear) for _, part in rest):
        names[f"{block}.mlp.hook_pre"] = f"{start}{rest[0][0]}"
        names[f"{block}.mlp.hook_post"] = f"{start}{rest[-1][0]}:in"
    if rest:
        names[f"{block}.hook_mlp_out"] = f"{start}{rest[-1][0]}"
    return names


def _is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Norm")
