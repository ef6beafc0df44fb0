"""Further costs: notions of privacy, and mechanisms that few pipelines have."""

from dpflow.accounting.costs.notions import (
    ApproxZCDP,
    GaussianDP,
    ProbabilisticDP,
    RenyiCurve,
    RenyiDP,
)
from dpflow.accounting.costs.outcomes import ProposeTestRelease
from dpflow.accounting.costs.top_k import TopK

__all__ = [
    "ApproxZCDP",
    "GaussianDP",
    "ProbabilisticDP",
    "ProposeTestRelease",
    "RenyiCurve",
    "RenyiDP",
    "TopK",
]
