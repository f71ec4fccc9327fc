"""Does the scalar a help in the authors' own setting?

Two layers with pre-LayerNorm, Gaussian embeddings, a token for the read-out after every string and
no causal mask. The read-out token equals no symbol, so in one layer a is of no use there, and the
kernel's matrix N is worse with it; with two, the first layer sees at every symbol which others
equal it, and the read-out token fetches what it saw.

The gain is accuracy on unseen symbols with aI less that without, seed by seed, at one number of
strings: how many each model needs is asked by ``template-sample-efficiency``. A gain does not say
that the models compute the answer in the way described here.
"""

from __future__ import annotations

from dataclasses import replace

from analyses.papers.base import Setting, Verdict
from analyses.papers.experiment import interval
from analyses.papers.template.models import NAMES, on_unseen, spec_of, task_sizes
from analyses.papers.template.sweeps import verdict_of
from prooflens.tasks import TemplateTask, aba_abb, same_different

__all__ = ["authors_setting", "with_readout"]

_EMBEDDINGS = {"trained": ("*",), "frozen": ("blocks.*", "pos_embed.*", "unembed.*")}


def authors_setting(setting: Setting) -> Verdict:
    """Test the effect of a on two tasks, embeddings trained or frozen (ledger:
    ``template-authors-setting``)."""
    options, experiment = setting.options, on_unseen(setting, rows=setting.options["rows"])
    for make in (same_different, aba_abb):
        task = with_readout(make(**task_sizes(options)))
        for embeddings, trained in _EMBEDDINGS.items():
            name = f"{task.title}, {embeddings} embeddings"
            for scalars in ("", "a"):
                spec = spec_of(task, options, scalars, n_layers=2, norm="layernorm", causal=False)
                labels = {"variation": name, "model": NAMES[scalars]}
                experiment.add(labels, task, spec, parameters=trained)
    told = "95 % interval of the gain above 0"
    return verdict_of(experiment.run()[0], told, lambda gains: interval(gains)[0] > 0, least=2)


def with_readout(task: TemplateTask) -> TemplateTask:
    """The task with a regular token ``→`` after every string, where the answer is read."""
    return replace(task, templates=tuple(z + "→" for z in task.templates))
