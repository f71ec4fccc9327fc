"""A small language model of Python sources, trained on the machine that asks for it."""
