"""One execution of a DP step: reserve, run, classify, settle.

This is the engine behind `dp_task`, `guarded` and `spend`; it knows no Prefect.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dpflow.accounting.costs import Cost
from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    DPStepFailed,
    LedgerUnavailable,
    ReleaseError,
)
from dpflow.ledger.codec import decode, encode
from dpflow.ledger.records import Answer, Busy, Granted, Replayed, Request
from dpflow.policy import Policy
from dpflow.project import Project, current_project
from dpflow.step import Step

logger = logging.getLogger("dpflow")

_CLAIM_SECONDS = 3600.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclosingFlow:
    """A flow around a step.

    Attributes:
        name: Name of the flow, as policies name it.
        run: Id of its run, where there are runs.
    """

    name: str
    run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a step runs.

    Attributes:
        flows: The enclosing flows, nearest first. A release without a key of its own
            is replayed within the nearest one's run.
        facts: Further facts for the journal, such as the task run's id.
    """

    flows: tuple[EnclosingFlow, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def named(cls, flow: str | None) -> Place:
        """Return the place of a step outside Prefect, in a flow of this name."""
        return cls(flows=(EnclosingFlow(name=flow),) if flow else ())


@dataclass(slots=True, kw_only=True)
class Execution:
    """A granted execution of a step's body.

    Attributes:
        cost: The worst case that is reserved.
        redact: Whether the text of the body's errors is withheld.
        error: What the outside may see of the error that ended the body, if one did.
    """

    project: Project
    request: Request
    redact: bool
    noise: str = "self-declared"
    error: Exception | None = None

    @property
    def cost(self) -> Cost:
        """The worst case that is reserved."""
        return self.request.cost

    def release(self, value: Any) -> Any:
        """Draw the declared noise and return the noisy value.

        Args:
            value: A number, list, numpy array or pandas series of numbers.

        Returns:
            The noisy value, of the same shape and kind.

        Raises:
            ReleaseError: If the cost names no mechanism, the value cannot carry its
                noise, or the step released something already: a second draw would
                cost a second time.
        """
        if self.noise != "self-declared":
            msg = (
                f"step {self.request.step!r} called release() twice, but its cost "
                "covers one draw. Release one vector, or make two steps of it."
            )
            raise ReleaseError(msg)
        from dpflow.mechanisms.noise import draw  # noqa: PLC0415 (imports OpenDP)

        self.noise = "opendp"
        return draw(self.cost, value)

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Run the body in this block; an error charges the step in full.

        An `Exception` is kept in `error` and not raised: raising another one here
        would carry the original, private text along as its context.
        """
        token = _current.set(self)
        try:
            yield
        except Exception as error:  # noqa: BLE001 (an error is an output of the step)
            self._fail(error)
            self.error = self._shown(error)
        except BaseException as error:
            # Timeouts, cancellation and termination are no Exceptions.
            self._fail(error)
            raise
        finally:
            _current.reset(token)

    def raise_error(self) -> NoReturn:
        """Raise what the outside may see, without the original behind it."""
        error = self.error or RuntimeError("the body ended without value and error")
        try:
            raise error
        finally:
            if isinstance(error, DPStepFailed):
                error.__context__ = None

    def settle(self, value: Any) -> None:
        """Post the charge and keep the release.

        A value that cannot be stored is told and not replayed; a ledger that does not
        answer is told, and the charge stays held in full.
        """
        text: str | None = None
        if self.request.release_key is not None:
            try:
                text = encode(value)
            except ReleaseError as error:
                self._warn(f"its release cannot be replayed: {error.message}")
        self._post("completed", text, {"noise": self.noise})

    def _fail(self, error: BaseException) -> None:
        """Charge a body that raised in full: an error is an output too."""
        self._post("failed", None, {"error_type": type(error).__name__})

    def _shown(self, error: Exception) -> Exception:
        """Return what the outside may see of an error of the body."""
        # dpflow's own errors hold no private text; the policy may allow all others.
        if isinstance(error, DpflowError) or not self.redact:
            return error
        datasets = ", ".join(policy.dataset for policy in self.request.policies)
        name = type(error).__name__
        msg = (
            f"{name} in DP step {self.request.step!r} on dataset {datasets!r} (text "
            "withheld: it may hold private data). The step was charged in full. To see "
            "the text where that is safe, set `errors: keep` in the policy."
        )
        return DPStepFailed(
            msg, dataset=datasets, step=self.request.step, error_type=name
        )

    def _post(self, outcome: str, text: str | None, body: Mapping[str, Any]) -> None:
        ledger = self.project.ledger
        try:
            ledger.settle(
                self.request.reservation, outcome=outcome, value=text, body=body
            )
        except DpflowError as error:
            self._warn(f"it stays charged in full and unsettled: {error.message}")

    def _warn(self, text: str) -> None:
        message = f"DP step {self.request.step!r}: {text}"
        logger.warning(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


#: The execution whose body is running in this context.
_current: ContextVar[Execution | None] = ContextVar("dpflow_execution", default=None)


def release(value: Any) -> Any:
    """Draw the noise that the running step declared; see `Execution.release`.

    Args:
        value: A number, list, numpy array or pandas series of numbers.

    Returns:
        The noisy value, of the same shape and kind.

    Raises:
        ReleaseError: Outside the body of a DP step, and as `Execution.release` says.

    Example:
        >>> @guarded(dataset="cdnow", cost=Gaussian(sensitivity=1, sigma=20))
        ... def customers(week):
        ...     return release(count(week))
    """
    execution = _current.get()
    if execution is None:
        msg = (
            "release() was called outside the body of a DP step, so nothing pays for "
            "it. Call it in a function under @dp_task or @guarded, in the same thread, "
            "or use spend(...).release."
        )
        raise ReleaseError(msg)
    return execution.release(value)


def ask(step: Step, public: Mapping[str, Any], place: Place) -> tuple[Project, Request]:
    """Resolve the policies, price the cost and make the request.

    Raises:
        DpflowError: If anything declared is wrong; nothing was charged.
    """
    project = current_project()
    policies = tuple(project.policies.policy_for(name) for name in step.datasets)
    cost = step.price(public)
    versions = [_version(step, policy) for policy in policies]
    common = [list(step.datasets), versions, step.name]
    key_text = step.key_text(public)
    run = place.flows[0].run if place.flows else None
    parts: list[object] | None = None
    if key_text is not None:
        parts = ["named", *common, key_text]
    elif run is not None:
        parts = [
            "run",
            *common,
            run,
            cost.describe(),
            _encoded(step, public),
        ]
    flow = _charged_flow(policies, place)
    request = Request(
        reservation=uuid.uuid4().hex,
        owner=_owner(project),
        policies=policies,
        cost=cost,
        step=step.name,
        flow=None if flow is None else flow.name,
        flow_run=None if flow is None else flow.run,
        enclosing_runs=tuple(f.run for f in place.flows if f.run is not None),
        release_key=None if parts is None else project.ledger.release_key(*parts),
        key_text=key_text or "",
        body={**place.facts, "versions": versions},
    )
    return project, request


def _owner(project: Project) -> str:
    try:
        return project.ledger.owners.mine()
    except OSError as error:
        place = project.ledger.place
        msg = f"cannot write beside the ledger {place}: {error.strerror}"
        raise LedgerUnavailable(msg, ledger=place) from error


def _version(step: Step, policy: Policy) -> str:
    """Return the data's version; with private arguments it must be said."""
    said = "version" in policy.model_fields_set
    if step.private and step.release_key is None and step.version is None and not said:
        msg = (
            f"step {step.name!r} takes private data as an argument, so a replay could "
            "serve one version's answer for another. Say version= on the task or "
            f"version: in the policy of {policy.dataset!r}, or give a release_key."
        )
        raise ConfigurationError(msg)
    return step.version or policy.version


def _encoded(step: Step, public: Mapping[str, Any]) -> dict[str, str]:
    """Encode the public arguments, which identify a release within a flow run."""
    found = {}
    for name, value in public.items():
        try:
            found[name] = encode(value)
        except ReleaseError as error:
            msg = (
                f"argument {name!r} of step {step.name!r} cannot identify a release "
                f"({error.message}). Mark it private=({name!r},), or give a "
                "release_key over the other arguments."
            )
            raise ConfigurationError(msg) from error
    return found


def _charged_flow(policies: tuple[Policy, ...], place: Place) -> EnclosingFlow | None:
    """Return the nearest enclosing flow that a policy names, else the root flow."""
    for flow in place.flows:
        if any(flow.name in policy.flows for policy in policies):
            return flow
    return place.flows[-1] if place.flows else None


def admit(project: Project, request: Request, answer: Answer) -> Execution | Replayed:
    """Turn the ledger's positive answer into an execution or a replay."""
    if isinstance(answer, Replayed):
        logger.info("DP step %r is replayed from its release", request.step)
        return answer
    if not isinstance(answer, Granted):
        msg = "a busy release was not waited for"
        raise TypeError(msg)
    redact = any(policy.errors == "redact" for policy in request.policies)
    return Execution(project=project, request=request, redact=redact)


def _expired(request: Request, waited_since: float) -> None:
    if time.monotonic() - waited_since > _CLAIM_SECONDS:
        msg = (
            f"another run has been making the release of step {request.step!r} for "
            f"{_CLAIM_SECONDS:g} s. Try again when it has ended."
        )
        raise LedgerUnavailable(msg)


def run(
    step: Step,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: Place,
) -> Any:
    """Run a step's body under the guard, or replay its release."""
    project, request = ask(step, step.bind(args, kwargs), place)
    since = time.monotonic()
    while isinstance(answer := project.ledger.reserve(request), Busy):
        _expired(request, since)
        time.sleep(_POLL_SECONDS)
    admitted = admit(project, request, answer)
    if isinstance(admitted, Replayed):
        return decode(admitted.value)
    with admitted.charged():
        value = body(*args, **kwargs)
        admitted.settle(value)
        return value
    return admitted.raise_error()


async def arun(
    step: Step,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: Place,
) -> Any:
    """Run an async step's body under the guard; as `run`, without blocking the loop."""
    project, request = ask(step, step.bind(args, kwargs), place)
    since = time.monotonic()
    while isinstance(
        answer := await asyncio.to_thread(project.ledger.reserve, request), Busy
    ):
        _expired(request, since)
        await asyncio.sleep(_POLL_SECONDS)
    admitted = admit(project, request, answer)
    if isinstance(admitted, Replayed):
        return decode(admitted.value)
    with admitted.charged():
        value = await body(*args, **kwargs)
        admitted.settle(value)
        return value
    return admitted.raise_error()
