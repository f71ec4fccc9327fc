"""The infinitely wide model beside the finite ones: N, block structure, lazy against full training.

    conditioning  random pairs of templates in the order of N's condition number and in that of
                  trained models' errors on unseen symbols
    blocks        the kernel matrix of a sample is N blown up, and kernel regression gives each
                  unseen string what N and the ridge that strings bring along predict
    features      full training against regression with the limit's kernel, with the features of
                  the initial model (its readout alone) and with its tangent kernel

N is that of a model without skip connection, read at the last position, and so are the models
that ``conditioning`` trains; the others have one. A rank correlation over twenty pairs says that
there is an order, not that nothing else matters.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from analyses.figures.dots import accuracy_sweep, points
from analyses.figures.nngp import kernel_matrices
from analyses.papers.base import Drawing, Setting, Verdict
from analyses.papers.experiment import by_seed, decide, verdict
from analyses.papers.template.models import (
    count_unfitted,
    fitted_runs,
    on_unseen,
    spec_of,
    task_sizes,
    unfitted_verdict,
)
from analyses.papers.template.nngp import (
    NNGPKernel,
    block_spread,
    feature_kernel,
    kernel_predict,
    quadrature_kernel,
    tangent_kernel,
    template_matrix,
    template_prediction,
)
from prooflens.architectures import SequenceTransformer, TransformerSpec
from prooflens.tasks import TemplateTask, aba_abb

__all__ = ["blocks", "conditioning", "every_template", "features", "random_pairs"]

_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)
_SHARE, _GAP, _GAP_OF_SIZE = 0.1, 0.1, 0.25
_NODES, _STRINGS = 12, 256
_WELL = 1000.0


def conditioning(setting: Setting) -> Verdict:
    """Test that N's condition number ranks what is hard (ledger: ``template-conditioning``)."""
    options = setting.options
    drawn = {"seed": options["pair_seed"], **task_sizes(options)}
    kernel, experiment = NNGPKernel(a=options["a"]), on_unseen(setting)
    conditions: dict[str, tuple[float, float]] = {}
    for task in random_pairs(options["pairs"], options["length"], **drawn):
        found = template_matrix(task, kernel, samples=options["samples"], nodes=10)
        conditions[task.title] = (found.condition, found.condition_error)
        for n in options["rows"]:
            spec = spec_of(task, options, "a", residual=False)
            experiment.add({"model": task.title, "n": n}, task, spec, rows=n)
    table, _ = experiment.run()
    if (lost := unfitted_verdict(table)) is not None:
        return lost
    by_n = fitted_runs(table).groupby(["model", "n"], sort=False)["accuracy"].mean().unstack()
    order = pd.DataFrame(conditions, index=["condition", "condition_error"]).T
    order["missed"] = 1 - by_n.mean(axis=1)
    rank, p = (float(v) for v in spearmanr(order["condition"], order["missed"]))
    well = order[order["condition"] < _WELL]
    among = float(spearmanr(well["condition"], well["missed"]).statistic)
    words = (
        f"Over {len(order)} random pairs of templates the condition number of N and the error on "
        f"unseen symbols (mean over n) have rank correlation {rank:.2f} (p = {p:.2g}); "
        f"over the {len(well)} with a condition number below {_WELL:g} it is {among:.2f}."
    )
    numbers = {
        "rank_correlation": rank,
        "p": p,
        "rank_correlation_well_conditioned": among,
        "order": order.to_dict("index"),
        "not_fitted": count_unfitted(table),
    }
    shown = fitted_runs(table).groupby(["n", "model"], sort=False)["accuracy"].mean().reset_index()
    shown["condition"] = shown["model"].map(order["condition"])
    shown["model"] = [f"n = {n}" for n in shown["n"]]
    figure = points(shown, x="condition", across="condition number of N", chance=0.5)
    seen = "Mean accuracy on unseen symbols against N's condition number, a dot a pair and n."
    return Verdict(
        decide(rank > 0 and p < 0.01, rank > 0 and p < 0.05),
        words,
        f"rank correlation {rank:.2f} (p = {p:.2g}, {len(order)} pairs)",
        numbers,
        {"accuracy": table, "order": order.rename_axis("model").reset_index()},
        {"accuracy": Drawing(figure, seen)},
    )


def blocks(setting: Setting) -> Verdict:
    """Test that kernels are constant on blocks of templates (ledger:
    ``template-kernel-blocks``)."""
    options = setting.options
    alphabets = [options["symbols"], *options["fewer_symbols"]]
    table = pd.DataFrame(
        [_blocks(options, symbols, seed) for symbols in alphabets for seed in setting.seeds]
    )
    judged = table[table["symbols"] == options["symbols"]]
    asked = table[table["symbols"] == options["fewer_symbols"][0]]
    constant = float(judged["share"].max()) <= _SHARE
    gaps, sizes = asked["gap"], asked["size"]
    told_by_n = bool(((gaps <= _GAP) & (gaps <= _GAP_OF_SIZE * sizes)).all())
    fewer = table[table["symbols"] != options["symbols"]].groupby("symbols", sort=False)
    told = "; ".join(
        f"{n}: share {rows['share'].mean():.2f}, gap {rows['gap'].mean():.3f}" for n, rows in fewer
    )
    words = (
        f"With {options['symbols']} symbols the within-block variance is "
        f"{judged['share'].max():.3f} of the kernel's at most. With {options['fewer_symbols'][0]} "
        f"kernel ridge regression, {sizes.mean():.2f} in size, is within {gaps.max():.3f} of "
        f"N (N + diag((λ + δ)/n_i))⁻¹ y, and {asked['gap_without'].mean():.2f} from it without δ. "
        f"With fewer symbols strings share some: {told}."
    )
    columns = ("share", "gap", "gap_without", "size", "within", "between")
    numbers = {name: by_seed(table, ["symbols"], name) for name in columns}
    return Verdict(
        decide(constant and told_by_n, constant or told_by_n),
        words,
        f"within-block share {judged['share'].mean():.3f}, gap to N's prediction {gaps.mean():.3f} "
        f"of {sizes.mean():.2f}",
        numbers,
        {"blocks": table},
        _block_drawings(options, setting.seeds[0]),
    )


def _blocks(options: Any, symbols: int, seed: int) -> dict[str, float]:
    """Measure the kernel matrix of a sample.

    Returns:
        ``share`` of the variance within blocks; ``gap`` between regression and N's prediction (and
        the same without the ridge δ that is part of the kernel); the prediction's mean ``size``;
        and the spread ``between`` block means and ``within`` blocks, relative to the mean entry.
    """
    task = aba_abb(**task_sizes({"symbols": symbols}))
    full, template, asked, labels = _sample(task, options, seed)
    n = len(template)
    ridge = options["ridge"] * float(np.diag(full[:n, :n]).mean())
    found = kernel_predict(full[:n, :n], labels, full[n:, :n], ridge=options["ridge"])
    limit = template_matrix(task, NNGPKernel(a=options["a"]), nodes=_NODES)
    y, counts = np.asarray(task.labels, float), np.bincount(template)
    expected, without = (
        template_prediction(limit.value, y, rows=counts, ridge=own)[asked]
        for own in (ridge + limit.surplus, ridge)
    )
    off = full[:n, :n][~np.eye(n, dtype=bool)]
    spread = float(off.std() / off.mean())
    _, share = block_spread(full[:n, :n], template)
    return {
        "symbols": symbols,
        "seed": seed,
        "share": share,
        "gap": float(np.abs(found - expected).mean()),
        "gap_without": float(np.abs(found - without).mean()),
        "size": float(np.abs(expected).mean()),
        "between": spread * max(1 - share, 0) ** 0.5,
        "within": spread * share**0.5,
    }


def _sample(
    task: TemplateTask, options: Any, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the kernel between training and unseen strings, the templates of both, and the
    labels."""
    train = task.sample(options["rows"], seed=seed)
    test = task.unseen().sample(options["tests"], seed=seed)
    strings = torch.cat((train.inputs, test.inputs)).numpy()
    full = quadrature_kernel(strings, NNGPKernel(a=options["a"]), nodes=_NODES)
    template, asked = (one.latents["template"][:, 0].numpy() for one in (train, test))
    return full, template, asked, train.targets[:, -1, 0].double().numpy()


def _block_drawings(options: Any, seed: int) -> dict[str, Drawing]:
    """Draw the kernel matrix of a sample in which few strings share a symbol, sorted by template,
    and the matrix N."""
    task = aba_abb(**task_sizes({"symbols": options["fewer_symbols"][-1]}))
    full, template, _, _ = _sample(task, options, seed)
    order = np.argsort(template, kind="stable")
    bounds = (np.flatnonzero(np.diff(template[order])) + 1).tolist()
    sample = kernel_matrices({"sample": full[np.ix_(order, order)]}, labels=[], bounds=bounds)
    n = template_matrix(task, NNGPKernel(a=options["a"]), nodes=_NODES).value
    small = kernel_matrices({"N": n}, labels=task.templates)
    return {
        "kernel": Drawing(
            sample, f"Kernel matrix of a sample of {task.train[1]} symbols, in blocks by template."
        ),
        "n": Drawing(small, "The matrix N between templates."),
    }


def features(setting: Setting) -> Verdict:
    """Test that full training needs fewer samples than kernels (ledger:
    ``template-feature-learning``)."""
    options = setting.options
    task = aba_abb(**task_sizes(options))
    spec, experiment = spec_of(task, options, norm="layernorm"), on_unseen(setting)
    for n in options["rows"]:
        experiment.add({"model": "trained", "n": n}, task, spec, rows=n)
    table, _ = experiment.run()
    if (nothing := unfitted_verdict(table)) is not None:
        return nothing
    lost, table = count_unfitted(table), fitted_runs(table)
    rows = [row for seed in setting.seeds for row in _lazy(task, spec, options, seed)]
    table = pd.concat([table, pd.DataFrame(rows)], ignore_index=True)
    means = table.groupby(["model", "n"], sort=False)["accuracy"].mean().unstack()
    lead = {
        name: float((means.loc["trained"] - means.loc[name]).mean())
        for name in means.index
        if name != "trained"
    }
    ahead = [name for name, gain in lead.items() if gain >= 0.03]
    share = len(ahead) / len(lead)
    words = (
        "Mean lead of full training in accuracy on unseen symbols over n: "
        + ", ".join(f"{gain:+.2f} over the {name}" for name, gain in lead.items())
        + ". Kernels have the best of four ridges on the test strings, which favours them."
    )
    figure = accuracy_sweep(table, x="n", across="training strings n", chance=0.5)
    numbers = {
        "lead": lead,
        "not_fitted": lost,
        "inverse_temperature": [_limit_of(spec, seed).beta for seed in setting.seeds],
        "accuracy": by_seed(table, ["model", "n"], "accuracy", between=" "),
    }
    least = min(lead, key=lambda name: lead[name])
    return verdict(
        decide(share == 1, share >= 0.5),
        words,
        f"lead of {lead[least]:+.2f} over the best kernel ({least})",
        numbers,
        name="accuracy",
        table=table,
        drawing=Drawing(figure, "Trained models against kernel regression."),
    )


def _limit_of(spec: TransformerSpec, seed: int) -> NNGPKernel:
    """The limit's kernel with the inverse temperature and the position codes of the model.

    The kernel's scores have variance β² (1 + γ²)² where tokens have length 1 and positions γ; a
    LayerNorm makes the length of their sum 1, so β (1 + γ²) is the spread of the model's scores.
    """
    model = SequenceTransformer(spec, seed=seed)
    strings = torch.arange(_STRINGS * spec.n_ctx).reshape(_STRINGS, -1) % spec.d_in
    name = "blocks.0.attn.hook_attn_scores"
    with torch.no_grad():
        _, cache = model.run_with_cache(strings, names_filter=name, return_cache_object=False)
        gamma = float(model.W_pos.norm() / model.embed.W_E.norm())
    gamma *= (spec.d_in / spec.n_ctx) ** 0.5
    return NNGPKernel(beta=float(cache[name][:, :, -1].std()) / (1 + gamma**2), gamma=gamma)


def _lazy(
    task: TemplateTask, spec: TransformerSpec, options: Any, seed: int
) -> list[dict[str, Any]]:
    """Return the accuracy of kernel regression with the limit kernel, the initial features and the
    tangent kernel."""
    most = max(options["rows"])
    train, test = task.sample(most, seed=seed), task.unseen().sample(options["tests"], seed=seed)
    strings = torch.cat((train.inputs, test.inputs))
    model = SequenceTransformer(spec, seed=seed)
    kernels = {
        "limit (NNGP)": quadrature_kernel(strings.numpy(), _limit_of(spec, seed), nodes=_NODES),
        "initial features": feature_kernel(model, strings),
        "tangent kernel": tangent_kernel(model, strings, train.inputs),
    }
    labels = train.targets[:, -1, 0].double().numpy()
    answers = test.targets[:, -1, 0].double().numpy()
    found = []
    for name, kernel in kernels.items():
        for n in options["rows"]:
            predicted = [
                kernel_predict(kernel[:n, :n], labels[:n], kernel[most:, :n], ridge=ridge)
                for ridge in _RIDGES
            ]
            accuracy = max(float((np.sign(p) == answers).mean()) for p in predicted)
            found.append({"model": name, "n": n, "seed": seed, "accuracy": accuracy})
    return found


_GREEK = "αβγδεζ"


def every_template(length: int) -> tuple[str, ...]:
    """Return all templates of ``length`` characters that have only wildcards, in canonical form.

    There are as many as there are partitions of the positions: 2, 5, 15, 52 for lengths 2 to 5.
    """
    found = [""]
    for _ in range(length):
        found = [z + c for z in found for c in _GREEK[: len(set(z)) + 1]]
    return tuple(found)


def random_pairs(
    count: int, length: int, *, seed: int = 0, **options: Any
) -> tuple[TemplateTask, ...]:
    """Draw different tasks of two random templates each, labelled +1 and −1.

    All pairs of templates of this length that are not equivalent are equally likely.

    Args:
        count: The number of tasks, at most that of the pairs.
        length: The number of characters of a template, at most six.
        seed: The seed of the draw.
        options: Those of :class:`~prooflens.tasks.TemplateTask`.
    """
    pairs = list(combinations(every_template(length), 2))
    drawn = np.random.default_rng([seed, length]).choice(len(pairs), count, replace=False)
    return tuple(
        TemplateTask(pairs[i], (1.0, -1.0), title="-".join(pairs[i]), **options) for i in drawn
    )
