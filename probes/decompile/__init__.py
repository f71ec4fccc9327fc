"""From a model back to a program, stage by stage; each stage adds to what the one before has found.

rows         the rows: for fitting, held out, longer, and off the task
decisions    the model's decisions, the best table on the current token, match and gain
components   which heads and FFNs the decisions need, and what can stand in for each head
primitives   the attention patterns that are tried for a head
features     values that a decision may depend on, and the questions about them
search       programs: formulas over those values that decide as the model does
wording      the same program, rewritten
judging      how often a program decides as the model does, which one is reported, is it found
evidence     further measurements: scores, FFNs, norms, longer rows, and the proof's program
workflow     the driver, from a model to all of that
"""
