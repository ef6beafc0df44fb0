"""What a step asks of the ledger, and where it runs."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from dpflow.accounting.costs.base import Cost
from dpflow.accounting.costs.planned import PlannedNoise
from dpflow.accounting.costs.text import cost_from_text
from dpflow.config import load_prefect
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    InvalidCost,
    UnsupportedCost,
    require,
)
from dpflow.guard.bodies import check_outside
from dpflow.guard.functions import constants_named, holds_rows
from dpflow.guard.identity import find_release_key
from dpflow.guard.project import Project, people_folder, project_label, project_of_step
from dpflow.guard.step import Step, StepCall, check_text, failed_loads
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.requests import Granted, Request, Settled
from dpflow.ledger.views.entries import alert_text
from dpflow.ledger.views.terms import find_governing
from dpflow.noise.sources import OWN
from dpflow.policy import Policy
from dpflow.policy.planned_noise import plan_multiplier
from dpflow.policy.population import PREFIX

logger = logging.getLogger("dpflow")

#: Mechanisms whose noise has intervals for sums.
_WITH_INTERVAL = ("Gaussian", "Laplace", "Refined")
#: Class that bounds contributions, by name: this package does without it.
_LIMITS = "dpflow.bounding.contributions.Contributions"
#: Bodies whose public arguments were warned of.
_warned: WeakSet[Callable[..., Any]] = WeakSet()
#: The calls of steps without a key, by bodies; None after the warning.
_charged: WeakKeyDictionary[Callable[..., Any], set[Any]] = WeakKeyDictionary()
_COMPARED, _MOST_CALLS = (str, int, float, date, type(None)), 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclosingFlow:
    """A flow around a step.

    Attributes:
        name: Name of the flow, as policies name it.
        run: Id of its run, where there are runs.
        deployment: Id of the deployment that the run is of, if it is of one.
    """

    name: str
    run: str | None = None
    deployment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The outcome of a step's request, after the ledger has committed it.

    Attributes:
        kind: "reserved", "term-opened", "alert", "progress", "replayed", "settled",
            "refused" or "exhausted".
        details: JSON-able facts of this kind; never data.
        project: Label of the project (`Settings.label`).
    """

    kind: str
    request: Request
    details: Mapping[str, Any]
    project: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Where a step runs.

    Attributes:
        flows: The enclosing flows, nearest first. A release without a key of its own
            is replayed within the nearest one's run.
        named: The flow that the step names itself (`flow=`), if it does.
        metadata: Further entries for the journal, such as the task run's id.
        listener: Hears the outcome of a step; it decides nothing.
        before_charge: Refuses a flow run that cannot end, by raising.
    """

    flows: tuple[EnclosingFlow, ...] = ()
    named: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    listener: Callable[[Notice], None] | None = None
    before_charge: Callable[[Project, Request], None] | None = None

    def tell(self, kind: str, request: Request, **details: Any) -> None:
        """Tell the listener; its failure is logged and changes nothing."""
        if self.listener is None:
            return
        try:
            label = project_label()
            notice = Notice(kind=kind, request=request, details=details, project=label)
            self.listener(notice)
        except without_interrupts(Exception):
            logger.exception("a notice of step %r was not delivered", request.step)

    def tell_refusal(self, refusal: BudgetRefused, request: Request) -> None:
        """Tell the listener that the step may not run, with what would fit."""
        kind = "exhausted" if isinstance(refusal, BudgetExhausted) else "refused"
        names = ("dataset", "gate", "theorem", "asked", "left", "fits")
        details = {name: refusal.details.get(name) for name in names}
        self.tell(kind, request, message=refusal.message, **details)

    def tell_granted(self, request: Request, answer: Granted) -> None:
        """Tell that a step's worst case is held, and which terms it opens."""
        self.tell("reserved", request)
        for term in answer.opened:
            logger.info("term %s of %r is charged first", term.number, term.book)
            named = {"dataset": term.book, "account": f"{term.book}#{term.number}"}
            why = {"term": term.number, "reason": term.fields["reason"]}
            budget = term.fields["pinned"]["budget"]
            self.tell("term-opened", request, **named, **why, **budget)

    def tell_settled(self, request: Request, answer: Settled, outcome: str) -> None:
        """Tell that a step's charge has ended, and which thresholds it crossed."""
        self.tell("settled", request, outcome=outcome, digest=answer.digest)
        for alert in answer.alerts:
            used = alert_text(alert.account, alert.threshold)
            logger.warning("%s, after step %r", used, request.step)
            self.tell("alert", request, message=used, **asdict(alert))


def check_flow(flow: object) -> str | None:
    """Return the name of a flow, if one is given.

    Raises:
        ConfigurationError: If it is no name.
    """
    return None if flow is None else check_text(flow, "flow")


#: How to find the context of a call within Prefect; `dpflow.prefect` adds its function.
context_finders: list[Callable[..., StepContext]] = []


def current_context(flow: str | None = None) -> StepContext:
    """Return the context of a call: within Prefect's flows, if any are around it.

    Otherwise the call would pass by the share and the halt of these flows.

    Args:
        flow: The flow that it names.

    Raises:
        ConfigurationError: If Prefect runs it and the part for Prefect is missing.
    """
    if not _within_prefect():
        return StepContext(named=flow)
    if not context_finders:
        load_prefect()
    require(
        context_finders,
        "Prefect runs a flow around this step, and the part of dpflow for Prefect is "
        "not installed. The step did not run. Import `dpflow.prefect` first.",
    )
    return context_finders[-1](named=flow)


def _within_prefect() -> bool:
    """Return True if Prefect runs a flow or a task around this call."""
    # Another thread may have half of it loaded. Around a run it is whole.
    context = sys.modules.get("prefect.context")
    kinds = (getattr(context, f"{name}RunContext", None) for name in ("Flow", "Task"))
    return any(kind is not None and kind.get() is not None for kind in kinds)


def ask(
    step: Step, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: StepContext
) -> tuple[Project, Request]:
    """Resolve the policies, price the cost and make the request.

    Args:
        step: The declaration of the step's author.
        args: The positional arguments of a call.
        kwargs: The other arguments.
        context: The context of the call.

    Raises:
        DpflowError: If anything declared is wrong; nothing was charged.
    """
    check_outside()
    project = project_of_step(step.name, step.body)
    for name in step.datasets:
        require(
            not name.startswith(PREFIX),
            f"step {step.name!r} names {name!r}, which is a population: name the "
            "dataset that it reads, whose policy charges the population as well.",
        )
    policies = tuple(map(project.policies.policy_for, step.datasets))
    zones = sorted({policy.zone for policy in policies})
    by_hour = any(p.partition and p.partition.by == "hour" for p in policies)
    call = step.ask(args, kwargs, zones, ["UTC"] if by_hour else zones)
    _warn_of_rows(step, call)
    cost, flow = call.cost, find_charged_flow(policies, context)
    if not isinstance(cost, Cost):
        pins = [find_governing(project.ledger, policy) for policy in policies]
        cost = _plan_cost(cost, step.name, None if flow is None else flow.name, pins)
    versions = [_version(step, call, policy) for policy in policies]
    run = context.flows[0].run if context.flows else None
    release_key, makers = find_release_key(step, call, (cost, versions), project, run)
    if release_key is None:
        _warn_of_second(step, call)
    digests = project.ledger.digests
    arguments = {
        name: None if text is None else digests.of("argument", release_key, name, text)
        for name, text in call.texts.items()
    }
    measured = _describe_measure(step, call, cost, policies[0], project)
    declared = call.shape.describe()
    body = {**context.metadata, "versions": versions, **measured}
    body |= {"shape": declared} if declared else {}
    if number := failed_loads.get(step.body):
        body["failed_loads"] = number
    is_reader = project.ledger.database.unwritable is not None
    request = Request(
        reservation=os.urandom(16).hex(),
        # Nothing can be reserved in a reader's name.
        owner="reader" if is_reader else project.ledger.owners.mine(),
        policies=policies,
        populations=project.policies.populations_of(policies),
        cost=cost,
        flow=None if flow is None else flow.name,
        flow_run=None if flow is None else flow.run,
        enclosing_runs=tuple(f.run for f in context.flows if f.run is not None),
        step=step.name,
        partitions=call.partitions,
        release_key=release_key,
        key_text=call.key or "",
        arguments=None if call.key is None else {"": next(iter(makers)), **arguments},
        makers=makers,
        fresh=step.fresh,
        on_change=step.on_change,
        body=body,
        shape=call.shape,
    )
    _check_person_budgets(step, project, request)
    _warn_beyond_plan(request)
    return project, request


def _warn_of_rows(step: Step, call: StepCall) -> None:
    """Warn once where public arguments are data: frames, arrays or lists of rows."""
    names = tuple(name for name, value in call.public.items() if holds_rows(value))
    if names and step.body not in _warned:
        _warned.add(step.body)
        warn(
            step.name,
            f"its public arguments {', '.join(names)} are tables or lists of rows, and "
            "a ledger keeps digests of public arguments. If they hold private data, "
            f"say private={names}",
        )


def _warn_of_second(step: Step, call: StepCall) -> None:
    """Log once that a step without a key is charged again for equal arguments."""
    seen, values = _charged.setdefault(step.body, set()), tuple(call.public.items())
    if not all(isinstance(value, _COMPARED) for _, value in values):
        return
    if values in seen and None not in seen and not step.fresh:
        seen.add(None)
        logger.warning(
            "DP step %r names no release_key, and each call with equal arguments is a "
            "charge. Name one to replay the release, or say fresh=True.",
            step.name,
        )
    if len(seen) < _MOST_CALLS:
        seen.add(values)


def warn(step: str, text: str) -> None:
    """Warn of a step, in the log and in Python's own way."""
    message = f"DP step {step!r}: {text}"
    logger.warning(message)
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _check_person_budgets(step: Step, project: Project, request: Request) -> None:
    """Refuse a step that people would pay for where one filter is not all that counts.

    Raises:
        ConfigurationError: If so; nothing was charged.
    """
    if not request.cost.paid_by_people:
        return
    policy, *others = request.policies
    flow, own = request.flow, step.noise == OWN
    name, rule = repr(policy.dataset), policy.dataset_filter()
    has_share = flow is not None and policy.flow_filter(flow) is not None
    is_divided = policy.partition is not None or policy.population is not None
    problems = {
        'the step says noise="own", and only person_sum draws its noise': own,
        "the step reads more than one dataset; make a step for each": others,
        f"the policy of {name} says filter: {rule.theorem}; a budget for every person "
        "needs filter: {theorem: individual, measure: gdp}": not rule.per_person,
        f"the policy of {name} gives flow {flow!r} a share of its own, and people have "
        "one budget; take the share out": has_share,
        f"dataset {name} is divided or part of a population, whose accounts have "
        "no remaining budget of each person": is_divided,
    }
    for problem, is_there in problems.items():
        message = f"PersonBudgets() cannot be charged: {problem}. The step did not run."
        require(not is_there, message)
    people_folder(project.settings)


def _version(step: Step, call: StepCall, policy: Policy) -> str:
    """Return the data's version; with private arguments it must be declared."""
    keyed = step.data_version is not None or call.key is not None
    require(
        not step.private or keyed or "data_version" in policy.model_fields_set,
        f"step {step.name!r} takes private data as an argument, so a replay could "
        "serve one version's answer for another. Say data_version= on the task or "
        f"data_version: in the policy of {policy.dataset!r}, or give a release_key.",
    )
    return step.data_version or policy.data_version


def _describe_measure(
    step: Step, call: StepCall, cost: Cost, policy: Policy, project: Project
) -> dict[str, Any]:
    """Return the declared measure, with a digest of what all parts of a sum share.

    Raises:
        ConfigurationError: If the numbers of the step have no interval.
    """
    if step.measures is None:
        return {}
    drawn = call.key and step.noise != OWN and len(step.datasets) == 1
    require(
        drawn and cost.mechanism in _WITH_INTERVAL,
        f"step {step.name!r} says measures={step.measures!r} and declares {cost!r}; "
        "answers need one dataset, a release_key, and Gaussian, Laplace or Refined "
        "noise that release() draws. The step did not run. Omit or correct measures=.",
    )
    functions = filter(None, (step.body, step.load))
    limits = sorted(repr(v) for f in functions for v in constants_named(f, _LIMITS))
    bounds = project.ledger.digests.of("bounds", policy.unit, policy.relation, *limits)
    key = call.key or ""
    fields = {name: text for name, text in call.texts.items() if text and text in key}
    return {"measures": {"name": step.measures, "fields": fields, "bounds": bounds}}


def find_charged_flow(
    policies: tuple[Policy, ...], context: StepContext
) -> EnclosingFlow | None:
    """Return the nearest enclosing flow that a policy names.

    Else it is the flow that the step names, else the root flow.

    Raises:
        ConfigurationError: If the step names another flow than the one around it that
            a policy names, whose share it would pass by.
    """
    around = context.flows
    for flow in around:
        if any(flow.name in policy.flows for policy in policies):
            require(
                context.named in (None, flow.name),
                f"a step says flow={context.named!r}, but it runs in flow "
                f"{flow.name!r}, which a policy names: its share and its halt would be "
                "passed by. Leave flow= away, or call the step outside of that flow. "
                "The step did not run.",
            )
            return flow
    if context.named is not None:
        return EnclosingFlow(name=context.named, run=around[0].run if around else None)
    return around[-1] if around else None


def _plan_cost(
    cost: PlannedNoise, step: str, flow: str | None, pins: Sequence[Mapping[str, Any]]
) -> Cost:
    """Return a cost with the most noise that one of its datasets plans for the step.

    Raises:
        ConfigurationError: If the policy of a dataset plans none for it.
    """
    try:
        return cost.at(max(plan_multiplier(p, flow, step, cost) for p in pins))
    except InvalidCost as error:
        msg = f"{error.message} The step did not run."
        raise ConfigurationError(msg) from error


def _warn_beyond_plan(request: Request) -> None:
    """Log a warning where a step's cost exceeds the bound of the flow's plan."""
    step, cost = request.step, request.cost
    for policy in request.policies:
        share = policy.flows.get(request.flow or "")
        planned = share.plan.steps.get(step) if share and share.plan else None
        if planned is None or planned.cost in (None, repr(cost)):
            continue
        rule = policy.dataset_filter()
        with suppress(UnsupportedCost):
            bound = rule.price(cost_from_text(str(planned.cost)))
            if not rule.price(cost).fits_within(bound):
                logger.warning(
                    "step %r declares %r, more than the plan of flow %r says (%s): "
                    "fewer runs fit. Correct `plan.steps.%s.cost` in the policy of "
                    "dataset %r.",
                    *(step, cost, request.flow, planned.cost, step, policy.dataset),
                )
