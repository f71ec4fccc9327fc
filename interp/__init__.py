"""The library behind ``import prooflens``: tasks, models, proofs, stores, measurements, figures."""
