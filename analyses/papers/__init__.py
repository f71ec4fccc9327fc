"""The papers' claims as experiments, with verdicts by rules that were written beforehand."""
