"""The claims of `depth` about C-RASP: programs, trained models, and what is inside them.

The paper's lower bound (no depth below k − 2 solves L_k's prediction problem) is under question: a
later machine-checked formalisation reports that two of its lemmas are false as stated. These claims
verify the upper bounds by running programs, and *test* the lower bound by training and searching;
nothing here proves it.
"""
