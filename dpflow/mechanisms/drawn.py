"""Mechanisms in the body of a DP step: claim the step's cost, draw, report the cell."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.composed import Repeated
from dpflow.exceptions import PublicError
from dpflow.guard.charge import Execution, current_execution

C = TypeVar("C", bound=Cost)
P = ParamSpec("P")
T = TypeVar("T")


class Drawn(NamedTuple, Generic[T]):
    """An output and the cell that it fell into.

    Attributes:
        output: What may be released.
        cell: The cell of the mechanism's cost, by its name or number; read off the
            mechanism's own output, before any post-processing.
    """

    output: T
    cell: str | int


def draws_for(
    kind: type[C], *, relation: str | None = None, by: str = ""
) -> Callable[[Callable[Concatenate[C, P], Drawn[T]]], Callable[P, T]]:
    """Make a mechanism a function for the body of a DP step.

    The function claims the one draw of the running step, hands the step's cost to the
    mechanism, reports the cell and returns the output. Filters such as `output-dp` and
    `rdp` then charge that cell; under other filters the worst case stays charged.

    Args:
        kind: The cost that the step must have declared.
        relation: The neighbouring relation of the mechanism's guarantee; default: any.
        by: Who draws, for the journal; default: OpenDP.
    """

    def decorate(draw: Callable[Concatenate[C, P], Drawn[T]]) -> Callable[P, T]:
        who = f"{draw.__name__}()"

        @functools.wraps(draw)
        def in_body(*args: P.args, **kwargs: P.kwargs) -> T:
            execution, cost = claimed(who, kind, relation=relation, by=by)
            with execution.drawing():
                drawn = draw(cost, *args, **kwargs)
            execution.report(drawn.cell)
            return drawn.output

        shape = inspect.signature(draw)
        _, *remaining = shape.parameters.values()
        in_body.__signature__ = shape.replace(parameters=remaining)  # type: ignore[attr-defined]
        return in_body

    return decorate


def claimed(
    who: str,
    kind: type[C],
    *,
    relation: str | None = None,
    times: int | None = None,
    by: str = "",
) -> tuple[Execution, C]:
    """Return the running execution and its cost, and take the one draw of the step.

    Args:
        who: The mechanism, for messages.
        kind: The cost that the step must have declared.
        relation: The neighbouring relation of the mechanism's guarantee; default: any.
        times: How often the step must have declared the cost, by `Repeated`. Default:
            the cost itself.
        by: Who draws, for the journal; default: OpenDP.

    Raises:
        ReleaseError: Outside a step with such a cost and relation, or if the step has
            drawn noise already.
    """
    execution = current_execution(who)
    for policy in execution.request.policies:
        if relation not in (None, policy.relation):
            msg = (
                f"{who} is private for the relation {relation}; the policy of "
                f"{policy.dataset!r} says {policy.relation}"
            )
            raise PublicError(msg)
    cost: Any = execution.cost
    repeated = 1
    if times is not None and isinstance(cost, Repeated):
        cost, repeated = cost.substeps
    if not isinstance(cost, kind) or repeated != (times or 1):
        needed = f"{kind.__name__}(...)"
        needed = needed if times in (None, 1) else f"Repeated({needed}, {times})"
        msg = (
            f"{who} needs a step with cost={needed} of its own kind; "
            f"step {execution.request.step!r} declared {execution.cost!r}"
        )
        raise PublicError(msg)
    execution.claim_draw(who, by)
    return execution, cost


def is_replace_one(execution: Execution) -> bool:
    """Return whether the relation of one of a step's policies is replace-one."""
    return any(p.relation == "replace-one" for p in execution.request.policies)
