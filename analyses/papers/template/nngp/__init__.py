"""Infinitely wide models on templates: kernels, the matrix N and kernel regression (`template`
§2.2).

    activations  E[φ(u)φ(v)] in closed form
    kernel       the transformer's kernel between strings: Monte Carlo with errors, quadrature
    templates    N and its condition number, block structure, what regression gives each template
    regression   kernel ridge; kernels of finite models (features, tangent)
"""

from analyses.papers.template.nngp.kernel import (
    Estimate,
    NNGPKernel,
    quadrature_kernel,
    transformer_kernel,
)
from analyses.papers.template.nngp.regression import (
    feature_kernel,
    kernel_predict,
    tangent_kernel,
    theory_model,
)
from analyses.papers.template.nngp.templates import (
    TemplateMatrix,
    block_spread,
    mlp_matrix,
    template_matrix,
    template_prediction,
)

__all__ = [
    "Estimate",
    "NNGPKernel",
    "TemplateMatrix",
    "block_spread",
    "feature_kernel",
    "kernel_predict",
    "mlp_matrix",
    "quadrature_kernel",
    "tangent_kernel",
    "template_matrix",
    "template_prediction",
    "theory_model",
    "transformer_kernel",
]
