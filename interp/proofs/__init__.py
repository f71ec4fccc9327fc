"""Why it can be done: the papers' constructions as models."""
