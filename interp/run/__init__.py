"""How anything here is measured: a model is run on some rows, something in it is changed, and what
is lost is asked for.

    site      a place in the model: layer, kind, head            :mod:`interp.hooks.site`
    edit      what is changed there, as a value                  :mod:`interp.run.edits`
    metric    how well the model does at each scored position    :mod:`interp.run.metrics`
    run       model + rows: clean values, activations, rises     :mod:`interp.run.run`
    evidence  which edits cost more than a floor, from few rows  :mod:`interp.run.evidence`

    >>> run = Run(model, tokens)                                      # doctest: +SKIP
    >>> run.rise(Mean(Site(3, "z", head=2)))      # [row, pos] nats   # doctest: +SKIP

``Run`` alone decides how it is done (:mod:`interp.run.layers`, :mod:`interp.run.plain`): on from
the edited layer, several edits in one batch, logits at scored positions alone, in slices of
constant memory, nothing twice. ``Run`` is also the gate (:mod:`interp.run.gate`): rows that the
model cannot take, and numbers that are not finite, end there with one sentence.

A rise shows that the model, as it is now, relies on what was changed on these rows. None may mean
that something else stands in.
"""

from interp.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
