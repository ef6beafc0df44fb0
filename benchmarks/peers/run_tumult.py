"""Tumult Core: its sequential composition subtracts exact pure or zCDP costs.

No Spark session is needed: queries are on single numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
import sympy
from answers import (
    ADAPTIVE,
    Fits,
    NotOfferedError,
    Rule,
    Step,
    Workload,
    always,
    answer,
    rho_by_hand,
)
from tmlt.core.domains.numpy_domains import NumpyFloatDomain, NumpyIntegerDomain
from tmlt.core.domains.pandas_domains import PandasSeriesDomain
from tmlt.core.measurements.base import Measurement
from tmlt.core.measurements.converters import PureDPToRhoZCDP
from tmlt.core.measurements.interactive_measurements import (
    MakeInteractive,
    MeasurementQuery,
    SequentialComposition,
)
from tmlt.core.measurements.noise_mechanisms import (
    AddDiscreteGaussianNoise,
    AddGeometricNoise,
)
from tmlt.core.measurements.pandas_measurements.series import NoisyQuantile
from tmlt.core.measures import InsufficientBudgetError, PureDP, RhoZCDP
from tmlt.core.metrics import AbsoluteDifference
from tmlt.core.utils.exact_number import ExactNumber

#: By hand, rho comes as a float; a guard for its last digits.
_BELOW = 1 - 1e-12


def _exact(number: Fraction) -> ExactNumber:
    return ExactNumber(sympy.Rational(number.numerator, number.denominator))


def _fraction(number: ExactNumber) -> Fraction:
    rational = sympy.Rational(number.expr)
    return Fraction(int(rational.p), int(rational.q))


class _Charged(Measurement):
    """A measurement of one number that says it costs so much."""

    def __init__(self, measure: Any, cost: ExactNumber) -> None:
        super().__init__(
            input_domain=NumpyIntegerDomain(),
            input_metric=AbsoluteDifference(),
            output_measure=measure,
            is_interactive=False,
        )
        self._cost = cost

    def privacy_function(self, d_in: Any) -> ExactNumber:
        """Return the cost."""
        return self._cost * ExactNumber(d_in)

    def __call__(self, _: Any) -> Any:
        """Return a constant."""
        return 0


@lru_cache
def _quantile_rho(epsilon: Fraction) -> ExactNumber:
    """Return what Tumult charges its own exponential mechanism in zCDP."""
    mechanism = NoisyQuantile(
        PandasSeriesDomain(NumpyFloatDomain()),
        output_measure=RhoZCDP(),
        quantile=0.5,
        lower=0.0,
        upper=1.0,
        epsilon=_exact(epsilon),
    )
    return mechanism.privacy_function(ExactNumber(1))


@lru_cache
def _pure(step: Step) -> Any:
    if step.kind == "laplace":
        # Its Laplace noise on whole numbers; the continuous one costs the same.
        return AddGeometricNoise(alpha=sympy.Rational(str(1 / Fraction(step.amount))))
    if step.kind in {"pure", "exponential"}:
        return _Charged(PureDP(), _exact(Fraction(step.amount)))
    msg = f"a {step.kind} step is not purely private"
    raise NotOfferedError(msg)


@lru_cache
def _zcdp(step: Step) -> Any:
    if step.kind == "gaussian":
        variance = sympy.Rational(str(Fraction(step.amount) ** 2))
        return AddDiscreteGaussianNoise(sigma_squared=variance)
    if step.kind == "exponential":
        return _Charged(RhoZCDP(), _quantile_rho(Fraction(step.amount)))
    if step.kind == "sampled":
        msg = "Tumult Core has no Poisson-sampled Gaussian"
        raise NotOfferedError(msg)
    return PureDPToRhoZCDP(_pure(step))


def _rho(epsilon: float, delta: float) -> Fraction:
    return Fraction(rho_by_hand(epsilon, delta) * _BELOW)


def _fits(workload: Workload, budget: Fraction, cost: Callable[[Step], Any]) -> Fits:
    each = {
        step: _fraction(cost(step).privacy_function(ExactNumber(1)))
        for step in workload.cycle
    }
    return lambda n: sum(each[s] * times for s, times in workload.first(n)) <= budget


def _composition(
    measure: Any, budget: Fraction, cost: Callable[[Step], Any]
) -> Callable[[Step], bool]:
    queryable = SequentialComposition(
        NumpyIntegerDomain(),
        AbsoluteDifference(),
        measure,
        d_in=ExactNumber(1),
        privacy_budget=_exact(budget),
    )(np.int64(5))

    def admit(step: Step) -> bool:
        try:
            queryable(MeasurementQuery(MakeInteractive(cost(step))))
        except InsufficientBudgetError:
            return False
        return True

    return admit


RULES = (
    Rule(
        "pure budget",
        always(ADAPTIVE),
        lambda workload, epsilon, _: _fits(workload, Fraction(epsilon), _pure),
        lambda _, epsilon, __, ___: _composition(PureDP(), Fraction(epsilon), _pure),
    ),
    Rule(
        "zCDP budget",
        always(ADAPTIVE),
        lambda workload, epsilon, delta: _fits(workload, _rho(epsilon, delta), _zcdp),
        lambda _, epsilon, delta, __: _composition(
            RhoZCDP(), _rho(epsilon, delta), _zcdp
        ),
    ),
)

if __name__ == "__main__":
    answer("Tumult Core", version("tmlt.core"), RULES)
