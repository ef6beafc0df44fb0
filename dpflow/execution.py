"""One execution of a DP step: reserve, run, classify, settle.

This is the engine behind `dp_task`, `guarded` and `spend`; it knows no Prefect.
"""

from __future__ import annotations

import inspect
import logging
import threading
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
    LedgerUnavailable,
    ReleaseError,
)
from dpflow.ledger.codec import decode, encode
from dpflow.ledger.records import Granted, Replayed, Request
from dpflow.ledger.releases import check_value
from dpflow.policy import Policy
from dpflow.project import Project, Unsettled, current_project
from dpflow.redaction import shown
from dpflow.step import Step, checked_text
from dpflow.waiting import areserve, reserve

logger = logging.getLogger("dpflow")

_LATER = (inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen)


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
        """Return the place of a step outside Prefect, in a flow of this name.

        Raises:
            ConfigurationError: If the name is no text.
        """
        if flow is None:
            return cls()
        return cls(flows=(EnclosingFlow(name=checked_text(flow, "flow")),))


@dataclass(slots=True, kw_only=True)
class Execution:
    """A granted execution of a step's body.

    Attributes:
        cost: The worst case that is reserved.
        redact: Whether the text of the body's errors is withheld.
        noise: Who drew the noise, for the journal.
        error: What the outside may see of the error that ended the body, if one did.
        error_type: Name of that error's type.
        ended: Whether the body has ended.
    """

    project: Project
    request: Request
    redact: bool
    noise: str = "self-declared"
    error: BaseException | None = None
    error_type: str = ""
    ended: bool = False
    _drawing: threading.Lock = field(default_factory=threading.Lock, repr=False)

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
        from dpflow.mechanisms.noise import draw  # noqa: PLC0415 (imports OpenDP)

        step = self.request.step
        # Threads of the body may race for the one draw that is paid for.
        with self._drawing:
            if self.ended:
                msg = (
                    f"release() was called after step {step!r} had ended and its "
                    "charge was posted. Call it inside the body or block."
                )
                raise ReleaseError(msg)
            if self.noise != "self-declared":
                msg = (
                    f"step {step!r} called release() twice, but its cost covers one "
                    "draw. Release one vector, or make two steps of it."
                )
                raise ReleaseError(msg)
            noisy = draw(self.cost, value)
            self.noise = "opendp"
        return noisy

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Run the body in this block; what ends it is kept in `error`, not raised.

        Raised here it would carry the original, private text along as its context.
        Call `settle` after the block, or `fail` if there is an error.
        """
        token = _current.set(self)
        try:
            yield
        # Timeouts, cancellation and termination are no Exceptions.
        except BaseException as error:  # noqa: BLE001 (an error is an output too)
            self.error_type = type(error).__name__
            self.error = self._shown(error)
        finally:
            self.ended = True
            _current.reset(token)

    def fail(self) -> NoReturn:
        """Charge a body that raised in full and raise what the outside may see."""
        self._post("failed", None, {"error_type": self.error_type})
        error = self.error or RuntimeError("the body ended without value and error")
        behind = error.__context__
        try:
            raise error
        finally:
            # In `spend`, Python has just put the original there.
            if self.redact:
                error.__context__ = behind

    def settle(self, value: Any) -> None:
        """Post the charge and keep the release.

        A value that cannot be stored is told and not replayed; a ledger that does not
        answer is told, and the charge stays held in full.
        """
        text: str | None = None
        refused: ReleaseError | None = None
        if self.request.release_key is not None:
            try:
                text = encode(value)
            except ReleaseError as error:
                refused = error
        self._post("completed", text, {"noise": self.noise})
        if refused is not None:
            self._warn(f"its release cannot be replayed: {refused.message}")

    def _shown(self, error: BaseException) -> BaseException:
        """Return what the outside may see of an error of the body."""
        if not self.redact:
            return error
        datasets = ", ".join(policy.dataset for policy in self.request.policies)
        return shown(error, step=self.request.step, dataset=datasets)

    def _post(self, outcome: str, text: str | None, body: Mapping[str, Any]) -> None:
        project, reservation = self.project, self.request.reservation
        try:
            project.ledger.settle(reservation, outcome=outcome, value=text, body=body)
        except BaseException as error:
            # So that this process does not wait for itself when it asks again.
            project.unsettled[reservation] = Unsettled(outcome=outcome, body=body)
            if not isinstance(error, DpflowError):
                raise
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
    touched = step.touched(public)
    common = [list(step.datasets), versions, step.name, *filter(None, [touched])]
    key_text = step.key_text(public)
    run = place.flows[0].run if place.flows else None
    parts: list[object] | None = None
    if key_text is not None:
        parts = ["named", *common, key_text]
    elif run is not None and step.replays:
        what = [step.source, cost.describe(), _encoded(step, public)]
        parts = ["run", *common, run, *what]
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
        partitions=touched,
        release_key=None if parts is None else project.ledger.release_key(*parts),
        key_text=key_text or "",
        fresh=step.fresh,
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


def admit(
    project: Project, request: Request, answer: Granted | Replayed
) -> Execution | Replayed:
    """Turn the ledger's positive answer into an execution or a replay."""
    if isinstance(answer, Replayed):
        check_value(answer.value, answer.digest, request.key_text or request.step)
        logger.info("DP step %r is replayed from its release", request.step)
        return answer
    redact = any(policy.errors == "redact" for policy in request.policies)
    return Execution(project=project, request=request, redact=redact)


def run(
    step: Step,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: Place,
) -> Any:
    """Run a step's body under the guard, or replay its release."""
    project, request = ask(step, step.bind(args, kwargs), place)
    admitted = admit(project, request, reserve(project, request))
    if isinstance(admitted, Replayed):
        return decode(admitted.value)
    value: Any = None
    with admitted.charged():
        value = _finished(step, body(*args, **kwargs))
    if admitted.error is not None:
        admitted.fail()
    admitted.settle(value)
    return value


async def arun(
    step: Step,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: Place,
) -> Any:
    """Run an async step's body under the guard; as `run`.

    Waiting for the ledger's answer does not block the event loop. The settlement
    does, shortly: nothing can cancel it.
    """
    project, request = ask(step, step.bind(args, kwargs), place)
    admitted = admit(project, request, await areserve(project, request))
    if isinstance(admitted, Replayed):
        return decode(admitted.value)
    value: Any = None
    with admitted.charged():
        value = _finished(step, await body(*args, **kwargs))
    if admitted.error is not None:
        admitted.fail()
    admitted.settle(value)
    return value


def _finished(step: Step, value: Any) -> Any:
    """Refuse an output that is yet to be computed: that would be outside the guard."""
    if any(is_later(value) for is_later in _LATER):
        if inspect.iscoroutine(value):
            value.close()
        msg = (
            f"step {step.name!r} returned a {type(value).__name__}, which reads the "
            "data only after the step has ended. Return the whole output."
        )
        raise ReleaseError(msg)
    return value
