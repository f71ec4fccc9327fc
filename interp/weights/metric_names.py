"""The names of a weight table's composition metrics, and the excess from which a pair is
reported."""

COMPOSITIONS = ("q_composition", "k_composition", "v_composition")

SINGULAR = "singular_value"

CLEAR_EXCESS = 0.5
"""Least score / null mean − 1 of a pair that is worth naming: 1.5² = 2.25, so that what the writer
writes is read with more than twice the energy that a random direction would get. One pair of GPT-2
small's heads in ten comes so far (95th percentile 0.6); its induction heads read L4H11 with 0.77 to
1.85, those of the shipped models their writer with 0.8 to 0.9."""
