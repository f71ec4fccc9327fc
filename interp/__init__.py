"""prooflens: check what a transformer does against a proof of what it can do."""
