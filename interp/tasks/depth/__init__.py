"""Depth tasks (`depth` §3.3): strings of languages whose programs' depth is known.

membership   is the whole string in the language?
prediction   at every position of a string of the language: is the part read so far in it?
"""

from interp.tasks.depth.strings import Membership, PrefixPrediction

__all__ = ["Membership", "PrefixPrediction"]
