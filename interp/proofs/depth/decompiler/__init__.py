"""The compiler's inverse: read the C-RASP program from the weights of a model that counts.

network   what every layer adds to a position: averages, lagged values, switches
tables    what a network writes, as a function of comparisons of counts
machine   layer by layer, the states that a position can be in and the classes that are counted
covers    a set of states as few conditions
program   the machine's answer as lines of C-RASP, checked on fresh strings
"""
