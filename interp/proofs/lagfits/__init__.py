"""Fits of lags and kernels by sums of exponentials or powers (`memory` §1.4).

`lag`              T + 1 exponentials in closed form: what the constructions use
`sums`             any number of exponentials or powers, any lag or kernel, any precision
"""

from interp.proofs.lagfits.lag import LagFit, fit_lag

__all__ = ["LagFit", "fit_lag"]
