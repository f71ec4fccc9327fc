"""The papers' claims as experiments: one module a family, verdicts by rules written beforehand."""
