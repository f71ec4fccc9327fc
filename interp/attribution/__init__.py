"""Direct attribution: the residual stream as a sum of the components' outputs."""
