"""The guard for plain Python: `guarded` functions and `spend` blocks.

Both reserve the worst case before the body runs and settle after it, on the same
engine as Prefect tasks under `dp_task`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, cast, overload

from typing_extensions import ParamSpec, TypeVar

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.accounting.rules.windows import has_delta
from dpflow.exceptions import UnsupportedCost, require
from dpflow.guard.bodies import check_outside, entering_frame
from dpflow.guard.charge import Execution, arun, begin_execution, run
from dpflow.guard.functions import charging
from dpflow.guard.request import check_flow, current_context
from dpflow.guard.reserving import Call, reserve
from dpflow.guard.shapes import ColumnsLike, GroupsLike, LengthLike
from dpflow.guard.step import (
    CellLike,
    CostLike,
    NoiseLike,
    OnChange,
    PartitionsLike,
    check_text,
    define_step,
)
from dpflow.interrupts import contextmanager
from dpflow.ledger.requests import Request

P = ParamSpec("P")
Q = ParamSpec("Q", default=...)
R = TypeVar("R")
S = TypeVar("S")

#: What a call of an async load returns.
Later = Coroutine[Any, Any, S]


class NoLoad:
    """Type of the loaded value of a step without a load."""


T_co = TypeVar("T_co", covariant=True, default=NoLoad)


class Decorator(Generic[Q, T_co]):
    """Decorator of a function, whose first parameter takes the value of a load."""

    if TYPE_CHECKING:

        @overload
        def __call__(
            self: Decorator[..., NoLoad], body: Callable[P, R], /
        ) -> Callable[P, R]: ...
        @overload
        def __call__(
            self: Decorator[Q, Later[S]], body: Callable[[S], R], /
        ) -> Callable[Q, R]: ...
        @overload
        def __call__(
            self: Decorator[Q, Later[S]], body: Callable[Concatenate[S, P], R], /
        ) -> Callable[P, R]: ...
        @overload
        def __call__(self, body: Callable[[T_co], R], /) -> Callable[Q, R]: ...
        @overload
        def __call__(  # type: ignore[overload-cannot-match]
            self, body: Callable[Concatenate[T_co, P], R], /
        ) -> Callable[P, R]: ...
        def __call__(self, body: Callable[..., R], /) -> Callable[..., R]:
            """Make a step of the function."""
            ...


def guarded(
    *,
    dataset: str | tuple[str, ...],
    cost: CostLike,
    load: Callable[Q, T_co] | None = None,
    flow: str | None = None,
    private: tuple[str, ...] = (),
    length: LengthLike | None = None,
    groups: GroupsLike | None = None,
    columns: ColumnsLike | None = None,
    release_key: str | None = None,
    ignore: tuple[str, ...] = (),
    moved_from: str | tuple[str, ...] = (),
    on_change: OnChange = "replay",
    partitions: PartitionsLike | None = None,
    fresh: bool = False,
    data_version: str | None = None,
    cell: CellLike | None = None,
    noise: NoiseLike = "release",
    measures: str | None = None,
    name: str | None = None,
) -> Decorator[Q, T_co]:
    """Guard a function that reads private data, without Prefect or in a flow of its.

    Args:
        dataset: Name of the dataset it reads, or several.
        cost: Its worst case, or a function of its public arguments.
        load: Function that reads the data: the function's first parameter takes what it
            returns. It runs before the reservation, and only where the step would be
            charged, so that its failure (`LoadFailed`) costs nothing. A function with
            that parameter alone is called with the load's parameters; else the load
            takes those of the function that it names.
        flow: Name of the flow whose share and odometer are charged, outside of
            Prefect. Within a Prefect flow it is that one, as for a `dp_task`.
        private: Names of parameters that hold private data.
        length: How many numbers without labels `release` gets, a tuple for an array of
            several dimensions; or a function of the public arguments, as `cost`.
        groups: Labels of the rows that are released, in their order, as a list, a tuple
            or a range, or of several label columns by their names; or a function.
            Other labels are dropped, and absent ones count 0 before the noise.
        columns: Names of the columns of numbers, in their order; or a function.
        release_key: Template over public parameters, the instance ("{self.region}")
            and captured variables, under which the output is stored; a second call with
            the same key replays it at no cost.
        ignore: Names of parameters and captured variables that the key does not read,
            for the output does not depend on them. A call with another value of any
            other one is refused in place of a replay.
        moved_from: Former file and name of the function, such as "flows/old.py:count",
            or several: a release belongs to its function. This covers the step's name.
        on_change: "refuse" if a release of another cost is an error.
            Default: it is replayed, with a warning that names both costs.
        partitions: Names of the partitions that it reads, as templates such as
            "{week}", or a function of its public arguments that returns names.
        fresh: Draw anew, at a charge of its own, even where a release could be
            replayed; the new one takes its place.
        data_version: Version of the data; default: the policy's.
        cell: For costs with cells, such as `OutputDP`: a function of what the body
            returns that names the cell. The body must return its mechanism's own
            output, before any post-processing. Without an answer from it (it raises,
            or names no cell of the cost) the step is charged in full.
        noise: "own" if the body draws the declared noise with its own code;
            `release` must not be called then. Default: a body that declares a
            mechanism which `release` draws, and ends without it, fails.
        measures: Name of the released number, which must add up over parts such as
            weeks: `dpflow.answer` then derives sums from its releases. Customers of a
            quarter are not the sum of weekly customers.
        name: Name of the step in the journal; default: the function's.

    Returns:
        A decorator that keeps signature, type hints and sync or async nature.

    Raises:
        ConfigurationError: If something declared cannot work.

    Examples:
        >>> @guarded(dataset="cdnow", cost=Gaussian(sensitivity=1, sigma=20))
        ... def customers(week):
        ...     return release(count(week))
    """
    declared = {key: value for key, value in locals().items() if key != "flow"}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        check_outside("@guarded")
        step, named = define_step(function, **declared), check_flow(flow)

        @functools.wraps(function)
        async def guard_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            return await arun(Call(step, args, kwargs, current_context(named)))

        @functools.wraps(function)
        def guard(*args: P.args, **kwargs: P.kwargs) -> Any:
            return run(Call(step, args, kwargs, current_context(named)))

        chosen = guard_async if inspect.iscoroutinefunction(function) else guard
        return cast("Callable[P, R]", charging(chosen, step.signature))

    return cast("Decorator[Q, T_co]", decorate)


@contextmanager
def spend(
    *,
    dataset: str | tuple[str, ...],
    cost: Cost | PlannedNoise,
    step: str,
    flow: str | None = None,
    partitions: PartitionsLike | None = None,
    noise: NoiseLike = "release",
) -> Iterator[Execution]:
    """Guard a block of code that reads private data.

    Args:
        dataset: Name of the dataset it reads, or several.
        cost: Its worst case.
        step: Name of the step in the journal.
        flow: Name of the flow whose share and odometer are charged, outside of
            Prefect. Within a Prefect flow it is that one.
        partitions: Names of the partitions that it reads.
        noise: "own" if the block draws the declared noise with its own code.

    Yields:
        The execution, whose `release` draws the declared noise. It takes `length=`,
        `groups=` and `columns=` for several numbers.

    Raises:
        BudgetRefused: If a gate does not admit the block, which then does not run.
        DPStepFailed: If the block raises; it is charged in full.

    Examples:
        >>> with spend(dataset="cdnow", cost=Laplace(sensitivity=1, epsilon="0.1"),
        ...            step="customers") as charge:
        ...     answer = charge.release(len(frame))
    """
    require(
        isinstance(cost, Cost | PlannedNoise),
        f"spend() needs cost=: a cost such as Gaussian(...), got {cost!r}",
    )
    declared = {"dataset": dataset, "partitions": partitions, "noise": noise}
    name = check_text(step, "step")
    # Nothing tells one lambda from another: each block is drawn anew.
    defined = define_step(lambda: None, name=name, cost=cost, **declared)
    call = Call(defined, (), {}, current_context(check_flow(flow)))
    _check_windows(call.request)
    # A block has no release key, so that nothing is replayed.
    grant: Any = reserve(call)
    execution = begin_execution(call, grant, is_function=False)
    with execution.run_body(entering_frame()):
        yield execution
    execution.end()


def _check_windows(request: Request) -> None:
    """Refuse a block with a delta that could go on to answer as rows arrive.

    Raises:
        UnsupportedCost: If a dataset of the block has windows.
    """
    for policy in request.policies:
        rule = policy.dataset_filter() if policy.window else None
        if rule is not None and has_delta(rule, rule.price(request.cost)):
            msg = (
                f"the block {request.step!r} has a delta, and may answer again when "
                f"rows of other parts of a window of dataset {policy.dataset!r} have "
                "arrived. Write a `@guarded` function, or use noise without a delta."
            )
            raise UnsupportedCost(msg, mechanism=request.cost.mechanism)
