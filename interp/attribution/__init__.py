"""Who wrote it: the residual stream as a sum of what each component added to it."""
