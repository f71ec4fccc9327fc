"""Check that a model's hooks carry what their names say, and that changing them acts as it should.

For every block that fires the hooks involved:

    resid_mid  = resid_pre + attn_out          pattern  = normaliser(scores)
    resid_post = resid_mid + mlp_out           z        = pattern @ v
    next resid_pre = resid_post                attn_out = Σ_heads result + b_O

A relation states how one hook (on the left) is computed from others (on the right), inside a block
or from a block to the next. Which relations apply depends on what the model says of itself: without
a residual stream, with attention and FFN in parallel, attention-only, with or without a normaliser.

Each relation is checked on the activations of one run, and again after the hooks on the right were
*changed*: a hook that fires the right tensor but whose replacement never reaches the rest of the
model passes the first check and fails the second. Besides, every hook is patched with its own
value, which must change nothing, and the output is compared with a reference.

Use it on any hooked model, ours, wrapped or bridged: hooks have carried wrong tensors, and nothing
else fails when they do. A model of another design (a norm after each sublayer, a scaled residual)
breaks some relations: then read the report, and do not trust the standard decompositions. A report
without failures shows that the hooks agree with each other on the given input. It does not show
that a hook in no relation, such as ``hook_embed`` or ``mlp.hook_pre``, is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from interp.errors import ConformanceError, Problems, refuse_unless
from interp.hooks.capture import arguments_of
from interp.hooks.site import Site
from interp.hooks.transformer_lens_adapter import HookedModel, vocabulary_of

Values = Mapping[str, Tensor]
Of = Callable[..., Tensor]
Compare = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

PRE, MID, POST = "hook_resid_pre", "hook_resid_mid", "hook_resid_post"
ATTN_OUT, MLP_OUT, RESULT = "hook_attn_out", "hook_mlp_out", "attn.hook_result"
SCORES, PATTERN = "attn.hook_attn_scores", "attn.hook_pattern"
V, Z = "attn.hook_v", "attn.hook_z"


def _as_they_are(got: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    return got, expected


@dataclass(frozen=True)
class Relation:
    """One equation between hooks: ``left`` = ``of``(the hooks on the ``right``).

    Attributes:
        name: The equation, as the report prints it.
        left: The kind of the left hook.
        right: The kinds of the hooks on the right.
        of: The function that computes the left side from the values on the right.
        step: 0 if the left hook is in the same block as the right ones, 1 if it is in the next
            block.
        compare: A function that brings both sides into the form in which they should be equal.
    """

    name: str
    left: str
    right: tuple[str, ...]
    of: Of
    step: int = 0
    compare: Compare = _as_they_are

    def layers(self, values: Values) -> list[int]:
        """Return the layers that fire a hook of the relation and, for ``step`` 1, have a next
        block."""
        layers = {Site.of(name).layer for name in values} - {-1}
        kinds = {self.left, *self.right}
        named = {i for i in layers if any(Site(i, kind).name in values for kind in kinds)}
        return sorted(i for i in named if i + self.step in layers)

    def absent(self, values: Values, layer: int) -> list[str]:
        """Return the names of the relation's hooks that did not fire in this layer."""
        names = self._names(layer)
        return [name for name in names if name not in values]

    def sides(self, values: Values, layer: int) -> tuple[Tensor, Tensor]:
        """Return the value of the left hook, and the value computed from the right ones."""
        left, *right = (values[name] for name in self._names(layer))
        return self.compare(left, self.of(*right, layer=layer))

    def _names(self, layer: int) -> list[str]:
        right = [Site(layer, kind).name for kind in self.right]
        return [Site(layer + self.step, self.left).name, *right]


def block_relations(
    model: Any, normalizer: Callable[[Tensor], Tensor] | None = None
) -> tuple[Relation, ...]:
    """Return the relations that should hold in a model with this configuration.

    Args:
        model: A hooked model, whose ``cfg`` and ``spec`` (if it has one) are read.
        normalizer: The function from scores to pattern; by default that of the model's spec, else a
            softmax over keys.
    """
    return (*_stream(model), *_attention(model, normalizer))


def _stream(model: Any) -> tuple[Relation, ...]:
    cfg, spec = getattr(model, "cfg", None), getattr(model, "spec", None)

    def total(*parts: Tensor, layer: int) -> Tensor:
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    following = Relation("next resid_pre = resid_post", PRE, (POST,), total, step=1)
    if getattr(cfg, "parallel_attn_mlp", False):
        name = "resid_post = resid_pre + attn_out + mlp_out"
        return (Relation(name, POST, (PRE, ATTN_OUT, MLP_OUT), total), following)
    adds = getattr(spec, "residual", True)
    name = "resid_mid = resid_pre + attn_out" if adds else "resid_mid = attn_out"
    after_attention = Relation(name, MID, (PRE, ATTN_OUT) if adds else (ATTN_OUT,), total)
    if getattr(cfg, "attn_only", False):
        after_ffn = Relation("resid_post = resid_mid", POST, (MID,), total)
    else:
        name = "resid_post = resid_mid + mlp_out" if adds else "resid_post = mlp_out"
        after_ffn = Relation(name, POST, (MID, MLP_OUT) if adds else (MLP_OUT,), total)
    return (after_attention, after_ffn, following)


def _attention(model: Any, normalizer: Callable[[Tensor], Tensor] | None) -> tuple[Relation, ...]:
    spec = getattr(model, "spec", None)
    softmax = normalizer is None and getattr(spec, "normalizer", "softmax") == "softmax"
    given = normalizer or torch.exp
    empty_rows = getattr(spec, "mask_self", False)

    def pattern(scores: Tensor, layer: int) -> Tensor:
        return scores.softmax(-1).nan_to_num() if softmax else given(scores)

    def attending(got: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
        """Return both sides for the queries that may attend to a key; with the diagonal masked
        the first query may not."""
        rows = (got != 0).any(-1) if empty_rows else torch.ones_like(got[..., 0], dtype=torch.bool)
        return got[rows], expected[rows]

    def to_one(got: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        rows, _ = attending(got, got)
        return rows.sum(-1), torch.ones_like(rows[..., 0])

    def mix_values(pattern: Tensor, v: Tensor, layer: int) -> Tensor:
        shared = v.repeat_interleave(max(pattern.shape[1] // v.shape[2], 1), dim=2)
        return torch.einsum("bhqk,bkhd->bqhd", pattern.to(shared.dtype), shared)

    def sum_results(result: Tensor, layer: int) -> Tensor:
        bias = _output_bias(model, layer)
        return result.sum(2) if bias is None else result.sum(2) + bias

    def constant_apart(got: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
        rest = (got - expected).mean(dim=(0, 1))
        return got, expected + rest

    of_scores = "softmax(scores)" if softmax else "exp(scores)" if normalizer is None else "…"

    def one(layer: int) -> Tensor:
        return torch.ones(())

    known = _output_bias(model, 0) is not None
    name = "attn_out = Σ result + b_O" if known else "attn_out = Σ result + a constant"
    relations = [Relation(f"pattern = {of_scores}", PATTERN, (SCORES,), pattern, compare=attending)]
    if softmax:
        relations.append(Relation("pattern rows sum to 1", PATTERN, (), one, compare=to_one))
    same = Relation(name, ATTN_OUT, (RESULT,), sum_results)
    apart = Relation(name, ATTN_OUT, (RESULT,), sum_results, compare=constant_apart)
    return (
        *relations,
        Relation("z = pattern @ v", Z, (PATTERN, V), mix_values),
        same if known else apart,
    )


def _output_bias(model: Any, layer: int) -> Tensor | None:
    try:
        bias = model.blocks[layer].attn.b_O
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    return bias if isinstance(bias, Tensor) else None


PASS, FAIL, NOT_CHECKABLE = "pass", "fail", "not checkable"
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_TOLERANCE_HALF = 3e-2
_SEEING = "every query sees a key"
_ADVICE = {
    _SEEING: "give the example no row without a key, such as one of pads alone or a mask that "
    "forbids all",
    "resid_": "check the sites of the residual stream; a model that scales it or has a norm after "
    "each sublayer has no such sums: leave hook_resid_mid out",
    "next resid_pre": "check that every block is named, in order, and that nothing lies between",
    "pattern": "check that hook_pattern is what the softmax returns, [batch, head, query, key], "
    "and hook_attn_scores what it is given, mask included; of another function give normalizer=…",
    "z = ": "check the pattern, and that v and z are split into heads: a site ending in /HEADS",
    "attn_out": "check that hook_attn_out is what the output projection returns",
    "output": "check that output=… names the tensor, and that the module gives the same twice",
    "patching": "other code writes into the tensors of the hooks named: let it write into copies",
}
"""Beginning of a relation's equation → what the user should do if the relation does not hold."""


@dataclass(frozen=True)
class Check:
    """The result of checking one relation between hooks in one block.

    Attributes:
        relation: The equation that should hold.
        where: The block, such as ``blocks.3``, or ``model``.
        status: ``pass``, ``fail`` or ``not checkable``.
        error: The largest deviation, as a share of the largest expected value; None if not checked.
        note: Why the relation is not checkable, or which hook is to blame.
    """

    relation: str
    where: str
    status: str
    error: float | None = None
    note: str = ""

    def __str__(self) -> str:
        off = "" if self.error is None else f" (off by {self.error:.2g} of the largest value)"
        note = f": {self.note}" if self.note else ""
        return f"{self.where}: {self.relation}{off}{note}"


@dataclass(frozen=True)
class ConformanceReport:
    """All checks of a model; printing it gives a table with one line per relation."""

    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == FAIL)

    def raise_if_failed(self, subject: str) -> None:
        """Raise one error that names every failure.

        Args:
            subject: What was checked, for the error's message.

        Raises:
            ConformanceError: if a check failed.
        """
        if self.failures:
            told = "; ".join(map(str, self.failures))
            advice = dict.fromkeys(_advice(check) for check in self.failures)
            raise ConformanceError(f"{subject}: {told}. What to do: {'; '.join(advice)}")

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("relation", "passed", "failed", "unchecked", "worst error")]
        for relation in dict.fromkeys(check.relation for check in self.checks):
            of = [check for check in self.checks if check.relation == relation]
            counts = (str(sum(c.status == s for c in of)) for s in (PASS, FAIL, NOT_CHECKABLE))
            errors = [check.error for check in of if check.error is not None]
            rows.append((relation, *counts, f"{max(errors):.1e}" if errors else "-"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*table, *(f"FAILED {check}" for check in self.failures)])


def _advice(check: Check) -> str:
    """Return a sentence on what to do about a failed check."""
    holds, changed, kind = check.relation.partition(", when ")
    if not changed:
        return next(words for begins, words in _ADVICE.items() if holds.startswith(begins))
    return (
        f"changing {kind.removesuffix(' changes')} there does not reach all that reads it: name "
        "its site with ':read', or let the tensor pass through an nn.Identity that all read from"
    )


def conformance(
    model: HookedModel,
    inputs: Any,
    reference: Tensor | Callable[..., Any] | None = None,
    *,
    normalizer: Callable[[Tensor], Tensor] | None = None,
    changes: bool = True,
) -> ConformanceReport:
    """Check the hooks of a model on a row or two.

    The model is run in evaluation mode, about twelve times; its mode is restored afterwards.

    Args:
        model: Any hooked model: ours, a wrapped module, a ``TransformerBridge``.
        inputs: The inputs that the model is run on; a tuple is several arguments.
        reference: The expected output, or a function that computes it from the inputs. A bridge is
            compared with its original model unless another reference is given.
        normalizer: The function from scores to pattern; by default that of the model's spec, else a
            softmax over keys.
        changes: Whether to check also that changing a hook has the right effect; if false, only the
            activations of one run are checked.

    Returns:
        The report. Failures do not raise an error; see :meth:`ConformanceReport.raise_if_failed`.

    Raises:
        ArgumentError: if the model has no hooks, the inputs are not what a model takes, or a token
            id is not one of the model's.
    """
    args = arguments_of(model, inputs)
    _check_ids(model, args[0])
    with torch.no_grad(), _evaluating(model):
        output = model.run_with_hooks(*args, fwd_hooks=[])  # with none: attaching must not matter
        _, cache = model.run_with_cache(*args)
        values = {name: value for name, value in cache.items() if isinstance(value, Tensor)}
        if blind := _blind_query(model, values):
            return ConformanceReport((blind,))  # softmax is not defined there, nor what follows
        relations = block_relations(model, normalizer)
        checks = [*_relate(relations, values)]
        checks.append(_compare_output(model, output, args, reference))
        if changes:
            checks += _relate_changed(relations, values, model, args)
            checks.append(_patch_with_itself(model, output, values, args))
    return ConformanceReport(tuple(checks))


def _blind_query(model: Any, values: Values) -> Check | None:
    """Return a failed check for the first query that may see no key, where softmax is undefined; or
    None."""
    if getattr(getattr(model, "spec", None), "mask_self", False):
        return None  # the first query of a row has none by design, and attends to nothing
    for name, value in values.items():
        if not name.endswith(("attn.hook_attn_scores", "attn.hook_pattern")) or value.ndim != 4:
            continue
        scores = name.endswith("scores")
        blind = (value == -torch.inf).all(-1) if scores else value.isnan().all(-1)
        if bool(blind.any()):
            row, _, query = torch.nonzero(blind)[0].tolist()
            note = f"row {row} has no key that position {query} may see"
            return Check(_SEEING, name.partition(".attn")[0], FAIL, note=note)
    return None


def _check_ids(model: HookedModel, ids: Any) -> None:
    size, problems = vocabulary_of(model), Problems("conformance")
    good = ids is not None and not isinstance(ids, str | int | float | torch.nn.Module)
    rule, advice = "must be a tensor, as the model takes it", "give a row or two"
    refuse_unless(good, "inputs", rule, ids, advice)
    if size is not None and isinstance(ids, Tensor) and not ids.is_floating_point() and len(ids):
        rule = f"must be token ids from 0 to {size - 1}, the model's vocabulary"
        for extreme in {int(ids.min()), int(ids.max())}:
            good, advice = 0 <= extreme < size, "use the model's own tokens"
            problems.need(good, "inputs", rule, extreme, advice)
    problems.raise_if_any()


def _relate(relations: tuple[Relation, ...], values: Values) -> Iterator[Check]:
    for relation in relations:
        for layer in relation.layers(values):
            absent = relation.absent(values, layer)
            where = f"blocks.{layer}"
            if absent:
                note = "no " + ", ".join(absent)
                yield Check(relation.name, where, NOT_CHECKABLE, note=note)
                continue
            yield _judge(relation.name, where, *relation.sides(values, layer))


def _relate_changed(
    relations: tuple[Relation, ...], values: Values, model: Any, args: tuple[Any, ...]
) -> Iterator[Check]:
    """Check the relations again, changing one kind of hook on their right side in all blocks at a
    time."""
    for kind in dict.fromkeys(kind for r in relations for kind in r.right):
        changed = {name for name in values if name.endswith("." + kind)}
        changed = {name for name in changed if not _read_only(model, name)}
        checkable = [r for r in relations if kind in r.right and r.layers(values)]
        if not changed or not checkable:
            continue
        after = _run_changed(model, values, changed, args)
        for relation in checkable:
            name = f"{relation.name}, when {kind.removeprefix('attn.')} changes"
            for layer in relation.layers(values):
                if Site(layer, kind).name in changed and not relation.absent(after, layer):
                    yield _judge(name, f"blocks.{layer}", *relation.sides(after, layer))


def _run_changed(model: Any, values: Values, changed: set[str], args: tuple[Any, ...]) -> Values:
    after: dict[str, Tensor] = {}

    def see(name: str) -> Callable[..., Tensor | None]:
        def hook(value: Tensor, hook: Any) -> Tensor | None:
            after[name] = _with_noise(value) if name in changed else value.detach()
            return after[name] if name in changed else None

        return hook

    model.run_with_hooks(*args, fwd_hooks=[(name, see(name)) for name in values])
    return after


def _with_noise(value: Tensor) -> Tensor:
    """Add noise of a third of the tensor's standard deviation; masked entries stay masked."""
    live = value > torch.finfo(value.dtype).min / 2
    spread = value[live].std() if live.sum() > 1 else value.new_tensor(0.0)
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(0)).to(value)
    moved = value + noise * torch.where(spread > 0, spread, torch.ones_like(spread)) / 3
    return torch.where(live, moved, value)


def _compare_output(
    model: Any, output: Any, args: tuple[Any, ...], reference: Tensor | Callable[..., Any] | None
) -> Check:
    relation = "output = reference"
    expected = getattr(model, "original_model", None) if reference is None else reference
    if expected is not None and not isinstance(expected, Tensor):
        expected = expected(*args)
        expected = getattr(expected, "logits", expected)
    if not isinstance(expected, Tensor) or not isinstance(output, Tensor):
        note = "no reference given" if expected is None else "the output is not one tensor"
        return Check(relation, "model", NOT_CHECKABLE, note=note)
    return _judge(relation, "model", output, expected)


def _patch_with_itself(model: Any, output: Any, values: Values, args: tuple[Any, ...]) -> Check:
    relation = "patching a hook with its own value changes nothing"
    names = [name for name in values if not _read_only(model, name)]
    if not isinstance(output, Tensor) or not names:
        note = "the output is not one tensor" if names else "no hook may be changed"
        return Check(relation, "model", NOT_CHECKABLE, note=note)

    def patch_hooks(chosen: list[str]) -> Check:
        own = [(n, lambda value, hook, n=n: values[n].clone()) for n in chosen]
        return _judge(relation, "model", model.run_with_hooks(*args, fwd_hooks=own), output)

    together = patch_hooks(names)
    if together.status == PASS:
        return together
    guilty = ", ".join(name for name in names if patch_hooks([name]).status == FAIL)
    return Check(relation, "model", FAIL, together.error, guilty or "only several together do")


def _judge(relation: str, where: str, got: Tensor, expected: Tensor) -> Check:
    if got.shape != expected.shape:
        note = f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
        return Check(relation, where, FAIL, note=note)
    tolerance = _TOLERANCE.get(expected.dtype, _TOLERANCE_HALF)
    got, expected = got.double(), expected.double()
    scale = expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 0.0
    gap = torch.where(got == expected, 0.0, (got - expected).abs()).nan_to_num(nan=torch.inf)
    error = gap.max().item() / (scale or 1.0) if gap.numel() else 0.0
    return Check(relation, where, PASS if error <= tolerance else FAIL, error)


def _read_only(model: Any, name: str) -> bool:
    return bool(getattr(model.hook_dict.get(name), "read_only", False))


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put every module in evaluation mode, and restore each one's own mode afterwards."""
    roots = (model, getattr(model, "original_model", None))
    training = [
        module
        for root in roots
        if isinstance(root, nn.Module)
        for module in root.modules()
        if module.training
    ]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
