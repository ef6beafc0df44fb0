"""autodp: mechanisms composed by their Renyi curves; the best order, found last."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from typing import Any

from answers import (
    GAUSSIAN,
    ORDER,
    Fits,
    NotOfferedError,
    Rule,
    Step,
    Workload,
    always,
    answer,
)
from autodp.mechanism_zoo import (
    ExactGaussianMechanism,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    PureDP_Mechanism,
)
from autodp.transformer_zoo import AmplificationBySampling, ComposeGaussian, Composition


@lru_cache
def _mechanism(step: Step) -> Any:
    amount = float(step.amount)
    if step.kind == "gaussian":
        return GaussianMechanism(amount)
    if step.kind == "laplace":
        return LaplaceMechanism(1 / amount)
    if step.kind == "pure":
        return PureDP_Mechanism(amount)
    if step.kind == "exponential":
        return ExponentialMechanism(amount)
    plain = GaussianMechanism(amount)
    plain.neighboring = "add_remove"
    sampling = AmplificationBySampling(PoissonSampling=True)
    return sampling(plain, float(step.rate), improved_bound_flag=True)


def renyi(workload: Workload, epsilon: float, delta: float) -> Fits:
    """Return the test of its Renyi accountant."""

    def fits(steps: int) -> bool:
        pairs = workload.first(steps)
        whole = Composition()([_mechanism(s) for s, _ in pairs], [n for _, n in pairs])
        return bool(whole.get_approxDP(delta) <= epsilon)

    return fits


def gaussians(workload: Workload, epsilon: float, delta: float) -> Fits:
    """Return the test of its exact composition of Gaussians."""
    if workload.kinds != {"gaussian"}:
        msg = "ComposeGaussian composes Gaussians only"
        raise NotOfferedError(msg)

    def fits(steps: int) -> bool:
        pairs = workload.first(steps)
        parts = [ExactGaussianMechanism(float(s.amount)) for s, _ in pairs]
        whole = ComposeGaussian()(parts, [n for _, n in pairs])
        return bool(whole.get_approxDP(delta) <= epsilon)

    return fits


RULES = (
    Rule("Composition (RDP)", always(ORDER), renyi),
    Rule("ComposeGaussian", always(GAUSSIAN), gaussians),
)

if __name__ == "__main__":
    answer("autodp", version("autodp"), RULES)
