"""dpflow: a budget guard for differentially private pipelines on Prefect.

Public names load when first used, so that `import dpflow` costs little and does not
import Prefect.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpflow.accounting.adapters import from_dp_event, from_opendp
    from dpflow.accounting.composed_costs import Composed, Repeated
    from dpflow.accounting.costs import (
        ZCDP,
        ApproxDP,
        Cost,
        Gaussian,
        Laplace,
        PureDP,
    )
    from dpflow.accounting.mechanism_costs import (
        DiscreteGaussian,
        DiscreteLaplace,
        ExponentialMechanism,
        PoissonSampledGaussian,
        RandomizedResponse,
    )
    from dpflow.accounting.notion_costs import (
        ApproxZCDP,
        GaussianDP,
        ProbabilisticDP,
        RenyiDP,
    )
    from dpflow.accounting.outcomes import OutputDP, ProposeTestRelease
    from dpflow.accounting.output_costs import EarlyStopping, SparseVector
    from dpflow.bounding import Clip, Contributions, bound_contributions
    from dpflow.drawing import (
        gradient_descent,
        interquartile_range,
        output_perturbation,
        recoverable_model,
        sparse_vector,
    )
    from dpflow.exceptions import (
        BudgetExhausted,
        BudgetRefused,
        DpflowError,
        DPStepFailed,
    )
    from dpflow.execution import release
    from dpflow.guard import guarded, spend
    from dpflow.ledger.codec.declared import releasable
    from dpflow.policy import Policy, load_policies, load_policy
    from dpflow.prefect.flow import dp_flow
    from dpflow.prefect.loader import private_task
    from dpflow.prefect.task import dp_task
    from dpflow.runs import RunCosts, preflight
    from dpflow.substeps import iterations

__version__ = "0.1.0"

_COSTS = "dpflow.accounting.costs"
_ERRORS = "dpflow.exceptions"
_PLACES = {
    "DiscreteLaplace": "dpflow.accounting.mechanism_costs",
    "DiscreteGaussian": "dpflow.accounting.mechanism_costs",
    "RandomizedResponse": "dpflow.accounting.mechanism_costs",
    "ExponentialMechanism": "dpflow.accounting.mechanism_costs",
    "PoissonSampledGaussian": "dpflow.accounting.mechanism_costs",
    "Composed": "dpflow.accounting.composed_costs",
    "Repeated": "dpflow.accounting.composed_costs",
    "ProbabilisticDP": "dpflow.accounting.notion_costs",
    "RunCosts": "dpflow.runs",
    "ApproxZCDP": "dpflow.accounting.notion_costs",
    "RenyiDP": "dpflow.accounting.notion_costs",
    "GaussianDP": "dpflow.accounting.notion_costs",
    "EarlyStopping": "dpflow.accounting.output_costs",
    "OutputDP": "dpflow.accounting.outcomes",
    "ProposeTestRelease": "dpflow.accounting.outcomes",
    "SparseVector": "dpflow.accounting.output_costs",
    "from_dp_event": "dpflow.accounting.adapters",
    "from_opendp": "dpflow.accounting.adapters",
    "Clip": "dpflow.bounding",
    "Contributions": "dpflow.bounding",
    "bound_contributions": "dpflow.bounding",
    "ApproxDP": _COSTS,
    "BudgetExhausted": _ERRORS,
    "BudgetRefused": _ERRORS,
    "Cost": _COSTS,
    "DPStepFailed": _ERRORS,
    "DpflowError": _ERRORS,
    "Gaussian": _COSTS,
    "Laplace": _COSTS,
    "Policy": "dpflow.policy",
    "PureDP": _COSTS,
    "ZCDP": _COSTS,
    "dp_flow": "dpflow.prefect.flow",
    "dp_task": "dpflow.prefect.task",
    "gradient_descent": "dpflow.drawing",
    "guarded": "dpflow.guard",
    "interquartile_range": "dpflow.drawing",
    "iterations": "dpflow.substeps",
    "load_policies": "dpflow.policy",
    "load_policy": "dpflow.policy",
    "output_perturbation": "dpflow.drawing",
    "preflight": "dpflow.runs",
    "private_task": "dpflow.prefect.loader",
    "recoverable_model": "dpflow.drawing",
    "releasable": "dpflow.ledger.codec.declared",
    "release": "dpflow.execution",
    "sparse_vector": "dpflow.drawing",
    "spend": "dpflow.guard",
}

__all__ = [
    "ZCDP",
    "ApproxDP",
    "ApproxZCDP",
    "BudgetExhausted",
    "BudgetRefused",
    "Clip",
    "Composed",
    "Contributions",
    "Cost",
    "DPStepFailed",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "DpflowError",
    "EarlyStopping",
    "ExponentialMechanism",
    "Gaussian",
    "GaussianDP",
    "Laplace",
    "OutputDP",
    "PoissonSampledGaussian",
    "Policy",
    "ProbabilisticDP",
    "ProposeTestRelease",
    "PureDP",
    "RandomizedResponse",
    "RenyiDP",
    "Repeated",
    "RunCosts",
    "SparseVector",
    "__version__",
    "bound_contributions",
    "dp_flow",
    "dp_task",
    "from_dp_event",
    "from_opendp",
    "gradient_descent",
    "guarded",
    "interquartile_range",
    "iterations",
    "load_policies",
    "load_policy",
    "output_perturbation",
    "preflight",
    "private_task",
    "recoverable_model",
    "releasable",
    "release",
    "sparse_vector",
    "spend",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        msg = f"module 'dpflow' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
