"""Bounds that hold for every input: affine forms with outward rounding, through a transformer."""
