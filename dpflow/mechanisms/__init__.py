"""Mechanisms for the body of a DP step, with the noise that its cost declares.

All noise is drawn by OpenDP. Mechanisms know costs and noise, and no ledger: an output
that decides the cost comes back as a cell.
"""

from dpflow.mechanisms.gradients import (
    individual_descent,
    individual_gradient,
    individual_sum,
)
from dpflow.mechanisms.in_steps import (
    gradient_descent,
    interquartile_range,
    median,
    output_perturbation,
    person_sum,
    recoverable_model,
    sparse_vector,
    trimmed_mean,
)
from dpflow.mechanisms.of_tables import private_bounds, private_groups, top_k
from dpflow.mechanisms.rows import Factors, LayerRows, NormClip, OuterRows

__all__ = [
    "Factors",
    "LayerRows",
    "NormClip",
    "OuterRows",
    "gradient_descent",
    "individual_descent",
    "individual_gradient",
    "individual_sum",
    "interquartile_range",
    "median",
    "output_perturbation",
    "person_sum",
    "private_bounds",
    "private_groups",
    "recoverable_model",
    "sparse_vector",
    "top_k",
    "trimmed_mean",
]
