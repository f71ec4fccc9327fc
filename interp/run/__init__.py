"""How every causal measurement here is made: run a model on some rows, change something in it, and
measure by how much a metric gets worse.

    site      a place in the model: layer, kind, head            :mod:`interp.hooks.site`
    edit      a change to make at a site, as a value             :mod:`interp.run.edits`
    metric    how well the model does at each scored position    :mod:`interp.run.metrics`
    run       model + rows: clean values, activations, rises     :mod:`interp.run.run`
    evidence  which edits cost more than a floor, from few rows  :mod:`interp.run.evidence`

    >>> run = Run(model, tokens)                                      # doctest: +SKIP
    >>> run.rise(Mean(Site(3, "z", head=2)))      # [row, pos] nats   # doctest: +SKIP

``Run`` alone decides how the model is run (:mod:`interp.run.layers`, :mod:`interp.run.plain`): from
the edited layer on, several edits in one batch, with logits at scored positions only, in slices of
constant memory, and nothing twice. ``Run`` also checks its inputs (:mod:`interp.run.gate`): it
refuses rows that the model cannot take, and numbers that are not finite, with a one-line error.

A rise of the loss shows that the model, as it is now, relies on the edited part on these rows. No
rise may mean that another part compensates.
"""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
