"""Depth tasks (`depth` §3.3): strings of languages whose programs' depth is known.

Membership         whether the whole string is in the language
PrefixPrediction   at every position of a string of the language, whether the part read so far
                   is in it
"""

from interp.tasks.depth.strings import Membership, PrefixPrediction

__all__ = ["Membership", "PrefixPrediction"]
