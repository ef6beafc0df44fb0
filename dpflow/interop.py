"""Adapters: costs of other libraries, and types of released values."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

from dpflow.accounting.costs.adapters import from_dp_event, from_opendp
from dpflow.accounting.costs.base import Cost, relations_of
from dpflow.accounting.costs.composed import Composed, Repeated
from dpflow.accounting.costs.noise import PoissonSampledGaussian
from dpflow.accounting.costs.notions import ApproxDP, PureDP
from dpflow.exceptions import (
    BudgetRefused,
    InvalidCost,
    PublicError,
    UnsupportedCost,
    require,
)
from dpflow.guard.charge import current_execution
from dpflow.interrupts import contextmanager
from dpflow.ledger.codec.kinds import releasable
from dpflow.ledger.views import open_reading
from dpflow.libraries import comes_from

__all__ = ["check_spent", "from_dp_event", "from_opendp", "releasable", "tool_error"]

P = ParamSpec("P")
R = TypeVar("R")


def check_spent(declared: Cost, spent: Any, *, d_in: Any = None) -> None:
    """Check in a body, before its `return`, that a library spent what was declared.

    The two are compared part by part: `Composed` of one cost is that cost, `Repeated`
    is a sum of equal costs, and the order of costs does not matter. Else their prices
    are compared, on each account that the step charged and as it was then.

    Args:
        declared: The cost of the step, or of a part of it.
        spent: What the library reports: a cost, an event of dp-accounting, the history
            of Opacus' accountant, a pair of epsilon and delta, or a measurement or
            query of OpenDP, whose map is evaluated.
        d_in: Distance of neighbouring inputs, for a measurement.

    Raises:
        PublicError: If the spent cost is larger, or cannot be compared. The text has
            the declared cost alone.
        ReleaseError: Outside the body of a step, where only prices could compare.

    Examples:
        >>> from dpflow import PureDP
        >>> check_spent(PureDP(epsilon="0.5"), (0.5, 0))
    """
    msg = (
        f"The library spent another cost than {declared!r}, and it is larger or not "
        "comparable. Declare what it reports, on synthetic data first."
    )
    try:
        cost = _read_spent(spent, d_in)
        if _count_parts(cost) <= _count_parts(declared):
            return
        execution = current_execution("check_spent()")
        for policy in execution.request.policies:
            require(policy.relation in relations_of(cost), msg, PublicError)
        with open_reading(execution.project.ledger) as reading:
            gates = [*reading.find_gates(execution.request.reservation)]
        for gate, used in gates:
            fits = gate.price(cost, used).fits_within(gate.price(declared, used))
            require(fits, msg, PublicError)
    except (InvalidCost, UnsupportedCost):
        # The text of the error may show what was spent.
        raise PublicError(msg) from None


def _read_spent(spent: Any, d_in: Any) -> Cost:
    """Return the cost that a library reports."""
    if isinstance(spent, Cost):
        return spent
    if d_in is not None or comes_from(spent, "opendp"):
        return from_opendp(spent, d_in)
    if not isinstance(spent, list | tuple):
        return from_dp_event(spent)
    if not all(isinstance(part, list | tuple) for part in spent):
        require(len(spent) == 2, "a pair has two numbers", InvalidCost)  # noqa: PLR2004
        epsilon, delta = spent
        return (
            ApproxDP(epsilon=epsilon, delta=delta) if delta else PureDP(epsilon=epsilon)
        )
    steps = []
    for noise, rate, number in spent:
        step = PoissonSampledGaussian(sampling_rate=rate, noise_multiplier=noise)
        steps.append(Repeated(step, number))
    return Composed(*steps)


def _count_parts(cost: Cost) -> Counter[Cost]:
    """Return the number of each part of a cost."""
    if isinstance(cost, Composed):
        return sum(map(_count_parts, cost.costs), Counter[Cost]())
    if isinstance(cost, Repeated):
        parts = _count_parts(cost.cost)
        return Counter({part: number * cost.times for part, number in parts.items()})
    return Counter([cost])


def tool_error(kind: type[Exception]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a step that is a tool of an agent answer a refusal with what remains.

    A server of tools, as of the Model Context Protocol (MCP), hides the text of other
    errors than its own.

    Args:
        kind: The server's own error, such as `ToolError`.

    Returns:
        A decorator, above `@guarded`, that keeps parameters and types.
    """

    @contextmanager
    def answering() -> Iterator[None]:
        try:
            yield
        except BudgetRefused as refusal:
            text, left = refusal.message, refusal.left or {}
            if left and "Remaining" not in text:
                amounts = ", ".join(f"{name} {amount}" for name, amount in left.items())
                text += f" Remaining: {amounts}."
            raise kind(text) from None

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            with answering():
                return await cast("Any", function(*args, **kwargs))

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with answering():
                return function(*args, **kwargs)

        is_async = inspect.iscoroutinefunction(function)
        return cast("Callable[P, R]", call_async) if is_async else call

    return decorate
