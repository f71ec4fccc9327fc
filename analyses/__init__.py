"""The laboratory: claims of the papers and their ledger, benchmarks, and the experiments behind the
figures of the documentation. ``python -m analyses --help`` lists what it runs.

It uses prooflens through the door, as any user would: ``prooflens`` and its public submodules, and
nothing behind them. The product knows nothing of it, and the wheel does not hold it.
"""
