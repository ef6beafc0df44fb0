"""Flow runs that hold their whole worst case before the first step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prefect.exceptions import Pause

from dpflow.exceptions import require
from dpflow.guard.run import Costs, RunCosts, begin, seal_run
from dpflow.interrupts import contextmanager
from dpflow.prefect.run_context import current_place, current_run

#: Argument of `dp_flow(reserve_run=...)`: the costs of all steps by dataset, a function
#: of the flow's parameters that returns them.
RunCostsLike = Costs | RunCosts | Callable[..., Costs | RunCosts]


class RunReservation:
    """What a flow declares of its runs; checked when the flow is defined.

    Args:
        declared: As `dp_flow` got it; None for no run reservation.
        function: The flow's function.

    Raises:
        ConfigurationError: If it cannot be used.
    """

    def __init__(
        self, declared: RunCostsLike | None, function: Callable[..., Any]
    ) -> None:
        self._declared: Any = declared
        self._signature = inspect.signature(function)
        if declared is not None and not callable(declared):
            self._declared = _run_costs(declared)

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Hold the run's worst case, before its first step.

        If it does not fit, nothing is held: the run replays stored releases, and its
        first draw is refused.

        Raises:
            DpflowError: If it cannot be decided; no step may run.
        """
        run = _run_id()
        if self._declared is None or run is None:
            return
        declared = self._declared
        if callable(declared):
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            declared = _run_costs(declared(**_wanted(declared, bound.arguments)))
        begin(declared, current_place(), run)

    @contextmanager
    def sealed(self) -> Iterator[None]:
        """Seal the run's reservation behind this block, unless the run goes on."""
        run = _run_id()
        if self._declared is None or run is None:
            yield
            return
        try:
            yield
        # Termination, cancellation and timeouts end the run as well.
        except BaseException as error:
            if not _goes_on(error):
                seal_run(run, "failed")
            raise
        seal_run(run, "completed")


def _run_id() -> str | None:
    run = current_run()
    return None if run is None else str(run.id)


def _goes_on(error: BaseException) -> bool:
    """Say whether this flow run is executed again: what it holds is for that, then."""
    if isinstance(error, Pause):
        return True
    run = current_run()
    if run is None or not isinstance(error, Exception):
        return False
    return run.run_count <= (run.empirical_policy.retries or 0)


def _run_costs(declared: Any) -> RunCosts:
    return declared if isinstance(declared, RunCosts) else RunCosts(costs=declared)


def _wanted(
    function: Callable[..., Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the flow's parameters that a function asks for."""
    asked = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in asked):
        return dict(parameters)
    missing = [p.name for p in asked if p.name not in parameters]
    require(
        not missing,
        f"the function of reserve_run asks for {', '.join(missing)}, but the flow has "
        f"no such parameters; it has {', '.join(parameters) or 'none'}",
    )
    return {p.name: parameters[p.name] for p in asked}
