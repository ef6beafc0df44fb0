"""Mechanisms for the body of a DP step, with the noise that its cost declares.

All noise is drawn by OpenDP, or exactly from rational weights. A mechanism is one
function of the step's cost; `drawn.draws_for` claims the cost and reports the cell.
"""

from dpflow.mechanisms.above_threshold import sparse_vector
from dpflow.mechanisms.bounds import private_bounds
from dpflow.mechanisms.gradients import (
    gradient_descent,
    individual_descent,
    individual_sum,
)
from dpflow.mechanisms.groups import private_groups, top_k
from dpflow.mechanisms.person_sums import person_sum
from dpflow.mechanisms.perturbed_models import output_perturbation, recoverable_model
from dpflow.mechanisms.propose_test_release import interquartile_range
from dpflow.mechanisms.rows import Factors, LayerRows, NormClip, OuterRows
from dpflow.mechanisms.trimming import median, trimmed_mean

__all__ = [
    "Factors",
    "LayerRows",
    "NormClip",
    "OuterRows",
    "gradient_descent",
    "individual_descent",
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
