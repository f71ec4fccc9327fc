"""From a model back to a program."""
