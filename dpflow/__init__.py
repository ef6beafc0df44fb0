"""dpflow: a budget guard for differentially private pipelines on Prefect.

Public names load when first used, so that `import dpflow` costs little and does not
import Prefect.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpflow.accounting.costs.adapters import from_dp_event, from_opendp
    from dpflow.accounting.costs.base import Cost
    from dpflow.accounting.costs.composed import Composed, Repeated
    from dpflow.accounting.costs.early_stopping import EarlyStopping
    from dpflow.accounting.costs.noise import (
        DiscreteGaussian,
        DiscreteLaplace,
        ExponentialMechanism,
        Gaussian,
        Laplace,
        PoissonSampledGaussian,
        RandomizedResponse,
    )
    from dpflow.accounting.costs.notions import (
        ZCDP,
        ApproxDP,
        ApproxZCDP,
        GaussianDP,
        ProbabilisticDP,
        PureDP,
        RenyiDP,
    )
    from dpflow.accounting.costs.outcomes import OutputDP, ProposeTestRelease
    from dpflow.accounting.costs.refined import Refined, RefinedLaplace
    from dpflow.accounting.costs.sparse_vector import SparseVector
    from dpflow.accounting.costs.top_k import TopK
    from dpflow.accounting.rules.individual import PersonBudgets
    from dpflow.accuracy.estimate import Estimate
    from dpflow.bounding.contributions import Clip, Contributions
    from dpflow.exceptions import (
        BudgetExhausted,
        BudgetRefused,
        DpflowError,
        DPStepFailed,
    )
    from dpflow.forecast.what_if import forecast
    from dpflow.guard.iterations import iterations
    from dpflow.guard.plain import guarded, spend
    from dpflow.guard.release import release
    from dpflow.guard.run import RunCosts, preflight
    from dpflow.ledger.codec.declared import releasable
    from dpflow.mechanisms.in_steps import (
        gradient_descent,
        interquartile_range,
        median,
        output_perturbation,
        person_sum,
        recoverable_model,
        refinable,
        refined,
        sparse_vector,
        trimmed_mean,
    )
    from dpflow.mechanisms.of_tables import private_bounds, private_groups, top_k
    from dpflow.policy import Policy, load_policies, load_policy
    from dpflow.prefect.flow import dp_flow
    from dpflow.prefect.loader import private_task
    from dpflow.prefect.task import dp_task
    from dpflow.show.history import history
    from dpflow.show.status import status
    from dpflow.show.why import why

__version__ = "0.1.0"

_COSTS = "dpflow.accounting.costs"
_ERRORS = "dpflow.exceptions"
_PLACES = {
    "DiscreteLaplace": f"{_COSTS}.noise",
    "DiscreteGaussian": f"{_COSTS}.noise",
    "RandomizedResponse": f"{_COSTS}.noise",
    "ExponentialMechanism": f"{_COSTS}.noise",
    "PoissonSampledGaussian": f"{_COSTS}.noise",
    "Composed": f"{_COSTS}.composed",
    "Repeated": f"{_COSTS}.composed",
    "ProbabilisticDP": f"{_COSTS}.notions",
    "RunCosts": "dpflow.guard.run",
    "ApproxZCDP": f"{_COSTS}.notions",
    "RenyiDP": f"{_COSTS}.notions",
    "GaussianDP": f"{_COSTS}.notions",
    "EarlyStopping": f"{_COSTS}.early_stopping",
    "OutputDP": f"{_COSTS}.outcomes",
    "ProposeTestRelease": f"{_COSTS}.outcomes",
    "Refined": f"{_COSTS}.refined",
    "RefinedLaplace": f"{_COSTS}.refined",
    "Estimate": "dpflow.accuracy.estimate",
    "SparseVector": f"{_COSTS}.sparse_vector",
    "TopK": f"{_COSTS}.top_k",
    "from_dp_event": f"{_COSTS}.adapters",
    "from_opendp": f"{_COSTS}.adapters",
    "Clip": "dpflow.bounding.contributions",
    "Contributions": "dpflow.bounding.contributions",
    "ApproxDP": f"{_COSTS}.notions",
    "BudgetExhausted": _ERRORS,
    "BudgetRefused": _ERRORS,
    "Cost": f"{_COSTS}.base",
    "DPStepFailed": _ERRORS,
    "DpflowError": _ERRORS,
    "Gaussian": f"{_COSTS}.noise",
    "Laplace": f"{_COSTS}.noise",
    "Policy": "dpflow.policy",
    "PureDP": f"{_COSTS}.notions",
    "ZCDP": f"{_COSTS}.notions",
    "dp_flow": "dpflow.prefect.flow",
    "dp_task": "dpflow.prefect.task",
    "gradient_descent": "dpflow.mechanisms.in_steps",
    "guarded": "dpflow.guard.plain",
    "history": "dpflow.show.history",
    "interquartile_range": "dpflow.mechanisms.in_steps",
    "iterations": "dpflow.guard.iterations",
    "load_policies": "dpflow.policy",
    "load_policy": "dpflow.policy",
    "median": "dpflow.mechanisms.in_steps",
    "refinable": "dpflow.mechanisms.in_steps",
    "refined": "dpflow.mechanisms.in_steps",
    "trimmed_mean": "dpflow.mechanisms.in_steps",
    "output_perturbation": "dpflow.mechanisms.in_steps",
    "person_sum": "dpflow.mechanisms.in_steps",
    "PersonBudgets": "dpflow.accounting.rules.individual",
    "preflight": "dpflow.guard.run",
    "private_bounds": "dpflow.mechanisms.of_tables",
    "private_groups": "dpflow.mechanisms.of_tables",
    "private_task": "dpflow.prefect.loader",
    "recoverable_model": "dpflow.mechanisms.in_steps",
    "releasable": "dpflow.ledger.codec.declared",
    "release": "dpflow.guard.release",
    "sparse_vector": "dpflow.mechanisms.in_steps",
    "spend": "dpflow.guard.plain",
    "status": "dpflow.show.status",
    "top_k": "dpflow.mechanisms.of_tables",
    "why": "dpflow.show.why",
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
    "Estimate",
    "ExponentialMechanism",
    "Gaussian",
    "GaussianDP",
    "Laplace",
    "OutputDP",
    "PersonBudgets",
    "PoissonSampledGaussian",
    "Policy",
    "ProbabilisticDP",
    "ProposeTestRelease",
    "PureDP",
    "RandomizedResponse",
    "Refined",
    "RefinedLaplace",
    "RenyiDP",
    "Repeated",
    "RunCosts",
    "SparseVector",
    "TopK",
    "__version__",
    "dp_flow",
    "dp_task",
    "forecast",
    "from_dp_event",
    "from_opendp",
    "gradient_descent",
    "guarded",
    "history",
    "interquartile_range",
    "iterations",
    "load_policies",
    "load_policy",
    "median",
    "output_perturbation",
    "person_sum",
    "preflight",
    "private_bounds",
    "private_groups",
    "private_task",
    "recoverable_model",
    "refinable",
    "refined",
    "releasable",
    "release",
    "sparse_vector",
    "spend",
    "status",
    "top_k",
    "trimmed_mean",
    "why",
]


def __getattr__(name: str) -> Any:
    if name == "forecast":
        # The package of this name is called like its function.
        return import_module("dpflow.forecast")
    place = _PLACES.get(name)
    if place is None:
        msg = f"module 'dpflow' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
