"""dp-accounting: its Renyi and its privacy loss distribution accountants."""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import dp_accounting as dpa
from answers import (
    ORDER,
    Fits,
    NotOfferedError,
    Rule,
    Step,
    Workload,
    always,
    answer,
    if_gaussian,
)
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant

RELATION = dpa.NeighboringRelation


def response_noise(epsilon: float) -> float:
    """Return the probability of a random answer in (epsilon, 0)-DP coin flips."""
    return 2 / (1 + math.exp(epsilon))


@lru_cache
def _event(step: Step) -> Any:
    amount = float(step.amount)
    if step.kind == "gaussian":
        return dpa.GaussianDpEvent(amount)
    if step.kind == "laplace":
        return dpa.LaplaceDpEvent(1 / amount)
    if step.kind == "pure":
        return dpa.RandomizedResponseDpEvent(response_noise(amount), 2)
    if step.kind == "exponential":
        # It has no such event; its zCDP event takes the known rate of a range.
        return dpa.ZCDpEvent(amount**2 / 8)
    return dpa.PoissonSampledDpEvent(float(step.rate), dpa.GaussianDpEvent(amount))


def renyi(workload: Workload, epsilon: float, delta: float) -> Fits:
    """Return the test of the Renyi accountant with its default orders."""
    sampled = "sampled" in workload.kinds
    relation = RELATION.ADD_OR_REMOVE_ONE if sampled else RELATION.REPLACE_ONE

    def fits(steps: int) -> bool:
        accountant = RdpAccountant(neighboring_relation=relation)
        for step, times in workload.first(steps):
            accountant.compose(_event(step), times)
        return bool(accountant.get_epsilon(delta) <= epsilon)

    return fits


@lru_cache
def distribution(step: Step, interval: float) -> Any:
    """Return the privacy loss distribution of one step, rounded up.

    The accountant itself is not used: in 0.6.0 `compose(event, count)` composes a
    RandomizedResponseDpEvent once, whatever count is.
    """
    amount = float(step.amount)
    grid = {"value_discretization_interval": interval}
    if step.kind == "gaussian":
        return pld.from_gaussian_mechanism(amount, **grid)
    if step.kind == "laplace":
        return pld.from_laplace_mechanism(1 / amount, **grid)
    if step.kind in {"pure", "exponential"}:
        # An exponential mechanism as any step of its epsilon.
        return pld.from_randomized_response(
            response_noise(amount), 2, neighboring_relation=RELATION.REPLACE_ONE, **grid
        )
    return pld.from_gaussian_mechanism(amount, sampling_prob=float(step.rate), **grid)


def composed(workload: Workload, steps: int, interval: float) -> Any:
    """Return the distribution of the first steps."""
    whole = pld.identity(value_discretization_interval=interval)
    for step, times in workload.first(steps):
        if step.kind == "gaussian":
            sigma = float(step.amount) / math.sqrt(times)
            part = pld.from_gaussian_mechanism(
                sigma, value_discretization_interval=interval
            )
        else:
            part = distribution(step, interval).self_compose(times)
        whole = whole.compose(part)
    return whole


def loss_distribution(workload: Workload, epsilon: float, delta: float) -> Fits:
    """Return the test of privacy loss distributions on the default grid."""
    if workload.kinds == {"exponential"}:
        msg = "dp-accounting has no loss distribution of an exponential mechanism"
        raise NotOfferedError(msg)
    interval = 1e-4
    return lambda n: (
        composed(workload, n, interval).get_epsilon_for_delta(delta) <= epsilon
    )


RULES = (
    Rule("RdpAccountant", always(ORDER), renyi),
    Rule("PLD", if_gaussian, loss_distribution),
)

if __name__ == "__main__":
    answer("dp-accounting", version("dp-accounting"), RULES)
