"""The names of a weight table's composition metrics, and the excess from which a pair is
reported."""

COMPOSITIONS = ("q_composition", "k_composition", "v_composition")

SINGULAR = "singular_value"

CLEAR_EXCESS = 0.5
"""Least excess, score / null mean − 1, of a pair of heads that is named in a report. At 0.5 the
reader reads what the writer writes with 1.5² = 2.25 times the energy of a random direction. A tenth
of the pairs of GPT-2 small's heads reach it (95th percentile 0.6). Its induction heads read L4H11
with 0.77 to 1.85, and those of the shipped models read their writer with 0.8 to 0.9."""
