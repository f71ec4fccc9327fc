"""From a model back to a program, stage by stage; each adds something to what the last one knows.

rows         what the model is asked: fitted, held out, longer, and off the task
decisions    what it decides, the best table on the current token, match and gain
components   which heads and FFNs the decisions need, and what stands in for each head
primitives   everything that a head is tried as
features     values that a decision may speak of, and the questions about them
search       programs: the formulas over those values that decide as the model does
wording      the same program in other words
judging      how nearly a program decides as the model, which one is reported, and is it found
evidence     what stands beside it: scores, FFNs, norms, longer rows, and the proof's program
workflow     the driver, from a model to all of that
"""
