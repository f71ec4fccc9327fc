"""prooflens checks what a transformer does against a proof of what it can do.

    import prooflens as pl

    model = pl.load("fixed-memory-multiplexer")     # shipped, a folder, or a hub id
    rows = model.card.task.sample(96, seed=1)       # inputs, targets, and every latent
    roles = pl.find_roles(model, rows)              # which component does what, with evidence

Everything a user needs has a name here: verbs are functions, nouns are classes, and what takes a
model takes it as any of these gives it. ``pl.plot``, ``pl.tasks`` and the other modules hold what
is needed less often. Names are loaded when they are first used: the import itself costs nothing.
"""

from interp.lazy import lazy

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
