"""The policy of one dataset: its fields, the rules it asks for, and what it pins.

A policy is whole or refused: every rule that it names is built when it is read, so
that a mistake shows before the first step and not in the middle of a flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import InitErrorDetails

from dpflow.accounting import (
    ODOMETERS,
    Filter,
    Odometer,
    Rule,
    make_filter,
    make_odometer,
)
from dpflow.accounting.rules.windows import guards_windows
from dpflow.exceptions import InvalidCost
from dpflow.policy.fields import (
    Budget,
    FlowShare,
    Governing,
    OdometerChoice,
    OnExhausted,
    rule_problem,
)
from dpflow.policy.partition import Partition
from dpflow.policy.pinned import guarantee_in_words
from dpflow.policy.reserved import with_derived_numbers
from dpflow.policy.types import (
    FLOW_PATTERN,
    Alerts,
    Name,
    OtherFlows,
    Text,
    Zone,
    check_flow_name,
    did_you_mean,
    exact_text,
    problem_at,
    raise_all,
)
from dpflow.policy.windows import Window
from dpflow.rounding import reading_up

#: Fields that a ledger keeps as they are declared.
_KEPT = {
    *("dataset", "unit", "relation", "budget", "other_flows"),
    *("lifetime", "partition", "population", "source", "window"),
}


class Policy(Governing):
    """What governs one dataset.

    Reading a file goes through `load_policy`, whose errors name the file and the line;
    constructing a policy in Python raises pydantic's `ValidationError`.
    """

    dataset: Name = Field(
        description="Name of the dataset; one policy governs it.", examples=["cdnow"]
    )
    odometer: OdometerChoice | None = Field(
        default=None,
        description="The theorem that bounds the loss of a flow at every moment.",
        examples=[{"theorem": "rdp", "delta": "1e-6"}],
    )
    flows: Mapping[str, FlowShare] = Field(
        default_factory=dict,
        description="Flows by name, each with its share of the budget.",
        examples=[{"weekly-report": {"epsilon": 2, "delta": "5e-7"}}],
        json_schema_extra={"propertyNames": {"pattern": FLOW_PATTERN}},
    )
    other_flows: OtherFlows = Field(
        default_factory=lambda data: "refuse" if data.get("flows") else "allow",
        description="Whether unnamed flows may use it. Default: if no flow is named.",
        examples=["allow", {"share_each": "5%"}],
    )
    partition: Partition | None = Field(
        default=None,
        description="Disjoint parts of the dataset, each with the budget to itself.",
        examples=[{"by": "region"}],
    )
    window: Window | None = Field(
        default=None,
        description="Consecutive parts by time that the budget covers together.",
        examples=[{"length": 52}],
    )
    zone: Zone = Field(
        default="UTC",
        description="Time zone of aware times in names of parts and in release keys.",
        examples=["Europe/Berlin"],
    )
    population: Name | None = Field(
        default=None,
        description="People who are in several datasets; its file caps them together.",
        examples=["customers"],
    )
    alerts: Alerts = Field(
        default=(Decimal("0.5"), Decimal("0.8"), Decimal("0.95")),
        description="Fractions of the filter's threshold that raise an alert, rising.",
        examples=[[0.5, 0.8, 0.95]],
    )
    errors: Literal["redact", "keep"] = Field(
        default="redact",
        description="What Prefect shows of a body's error; its text may be private.",
        examples=["redact"],
    )
    on_exhausted: OnExhausted = Field(
        default=OnExhausted(),
        description="What happens when a budget is exhausted.",
        examples=[{"flow": "halt", "schedule": "pause"}],
    )
    data_version: Text = Field(
        default="1",
        description="Version of the data; with a new one, steps make new releases.",
        examples=["1", "2026-11"],
    )
    pin: Literal["step", "apply"] = Field(
        default="step",
        description="What pins the first copy of the policy: the first step, or a "
        "person with `dpflow policy apply`.",
        examples=["apply"],
    )
    source: Name | None = Field(
        default=None,
        description="Public name of the data behind the dataset; no other dataset of "
        "the ledger has the same, except within one population.",
        examples=["warehouse.sales.customers"],
    )

    @model_validator(mode="before")
    @classmethod
    def _default_filter(cls, value: object) -> object:
        # `auto` has no price that is equal in all windows.
        if isinstance(value, Mapping) and value.get("window") is not None:
            return {"filter": "gdp", **value}
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        solved = any(s.plan or s.reserved or s.share for s in self.flows.values())
        solved = solved or isinstance(self.other_flows, Mapping)
        problems = [*self._rule_problems()]
        if self.window is not None and not problems:
            problems += [
                problem_at(m, hint, *at) for m, hint, *at in _window_problems(self)
            ]
        # A plan is solved for rules, so they come first.
        if solved and not problems:
            problems = rule_problem(self.to_pinned, "flows")
        raise_all("Policy", problems)
        return self

    # The rules

    def dataset_filter(self) -> Filter:
        """Make the filter of the whole dataset."""
        return self._filter(self.budget)

    def whole_filter(self) -> Filter | None:
        """Make the filter of all partitions by time together; None without a cap."""
        by_time = self.partition is not None and self.partition.by_time
        return self._filter(self.lifetime) if by_time and self.lifetime else None

    def flow_filter(self, flow: str | None) -> Filter | None:
        """Make the filter of a flow's own share; None if it has no share.

        Args:
            flow: Name of the flow; None outside any flow.
        """
        share = self.flows.get(flow or "")
        return self._filter(share) if share and share.epsilon else None

    def flow_odometer(self, flow: str | None) -> Odometer | None:
        """Make the odometer of a flow; None if the policy asks for none.

        Constants that the policy does not give are tuned for the reading at which the
        flow halts, or for the budget's epsilon if it halts nowhere.
        """
        if self.odometer is None:
            return None
        choice, options = self.odometer, self.odometer.options
        delta = self.budget.delta if choice.delta is None else choice.delta
        if "halt_at_epsilon" in choice.arguments():
            share = self.flows.get(flow or "")
            halt = share.halt_at_epsilon if share else None
            options["halt_at_epsilon"] = exact_text(halt or self.budget.epsilon)
        return make_odometer(choice.theorem, delta=exact_text(delta), **options)

    def _filter(self, numbers: Budget | FlowShare) -> Filter:
        budget = numbers.model_dump(include={"epsilon", "delta"})
        return make_filter(self.filter.theorem, **budget, **self.filter.options)

    # What must hold between the fields

    def _rule_problems(self) -> Iterator[InitErrorDetails]:
        makers = self.dataset_filter, partial(self.flow_odometer, None)
        wrong_filter = rule_problem(partial(self._check_relation, makers[0]), "filter")
        wrong_odometer = rule_problem(
            partial(self._check_relation, makers[1]), "odometer"
        )
        yield from (*wrong_filter, *wrong_odometer)
        yield from _above(self.budget, self, "lifetime", "budget")
        if not wrong_filter:
            yield from rule_problem(self.whole_filter, "lifetime")
        part = self.partition
        if part and (broken := part.problem_with(self.unit, self.relation)):
            yield problem_at(*broken, "partition")
        for flow, share in self.flows.items():
            path = ("flows", flow)
            if unusable := check_flow_name(flow):
                yield problem_at(*unusable, *path)
            excess = [*_above(share, self, "budget", *path)]
            yield from excess
            if not excess and not wrong_filter:
                yield from rule_problem(partial(self.flow_filter, flow), *path)
            if share.halt_at_epsilon is not None and not wrong_odometer:
                yield from self._halt_problems(flow, share.halt_at_epsilon)

    def _check_relation(self, make: Callable[[], Rule | None]) -> None:
        """Make a rule, and refuse it where the policy's relation is not its own."""
        rule = make()
        if rule is not None and self.relation not in rule.relations:
            holds = " and ".join(rule.relations)
            msg = (
                f"{rule.theorem!r} holds for {holds}, not for {self.relation}. Choose "
                "another theorem, or another relation if the data allows it."
            )
            raise InvalidCost(msg)

    def _halt_problems(self, flow: str, halt: Decimal) -> Iterator[InitErrorDetails]:
        path = ("flows", flow, "halt_at_epsilon")
        if self.odometer is None:
            hint = f"Add `odometer: NAME`, or drop it. {did_you_mean('', ODOMETERS)}"
            yield problem_at("halt_at_epsilon needs an odometer.", hint, *path)
            return
        if broken := rule_problem(partial(self.flow_odometer, flow), *path):
            yield from broken
            return
        odometer = self.flow_odometer(flow)
        idle = odometer.read(odometer.zero()) if odometer else 0.0
        if idle >= Fraction(halt):
            reading = reading_up(idle)
            message = (
                f"the odometer {self.odometer.theorem!r} reads {reading} before any "
                f"step, at or above halt_at_epsilon {exact_text(halt)}."
            )
            hint = f"Raise halt_at_epsilon above {reading}, or the odometer's delta."
            yield problem_at(message, hint, *path)

    # What a ledger keeps

    def to_declared(self) -> dict[str, Any]:
        """Return what the policy says about its guarantee, without derived numbers.

        Equal declarations give equal JSON, however their numbers are spelt. This is
        what a ledger compares a file with.
        """
        return {
            **self._dump_declared(),
            "filter": self.filter.to_declared(),
            "odometer": self.odometer.to_declared() if self.odometer else None,
            "flows": self._dump_flows(),
        }

    def to_described(self) -> dict[str, Any]:
        """Return the declaration with the free texts, on which no step depends."""
        return {**self.to_declared(), "about": dict(self.about)}

    def to_pinned(self) -> dict[str, Any]:
        """Return everything on which the guarantee rests, with derived numbers.

        Equal guarantees give equal JSON: `3` and `3.00` pin identically.
        """
        rule = self.whole_filter()
        flows = {
            name: {
                **share,
                "filter": _parameters(self.flow_filter(name)),
                "odometer": _parameters(self.flow_odometer(name)),
            }
            for name, share in self._dump_flows().items()
        }
        return with_derived_numbers(
            {
                **self._dump_declared(),
                **({"whole": _parameters(rule)} if rule else {}),
                "filter": _parameters(self.dataset_filter()),
                "odometer": _parameters(self.flow_odometer(None)),
                "flows": flows,
            }
        )

    def _dump_flows(self) -> dict[str, Any]:
        return {name: self.flows[name].model_dump() for name in sorted(self.flows)}

    def _dump_declared(self) -> dict[str, Any]:
        """Return the fields from which nothing is derived; without empty ones."""
        named = _KEPT if self.zone_of_parts in (None, "UTC") else {*_KEPT, "zone"}
        return self.model_dump(include=named, exclude_none=True)

    @property
    def zone_of_parts(self) -> str | None:
        """The time zone of the names of parts; None where parts are no periods."""
        if self.partition is None or not self.partition.by_time:
            return None
        # An hour that occurs twice has two names in UTC only.
        return "UTC" if self.partition.by == "hour" else self.zone

    def guarantee_sentence(self) -> str:
        """Say what the policy guarantees, and on which assumptions."""
        return guarantee_in_words(self._dump_declared())


def _parameters(rule: Rule | None) -> dict[str, Any] | None:
    return None if rule is None else rule.parameters()


def _above(
    part: Budget | FlowShare, policy: Policy, limit: str, *path: str
) -> Iterator[InitErrorDetails]:
    """Refuse a budget or share above its limit, if there is one."""
    name = "budget" if isinstance(part, Budget) else "share"
    for number in ("epsilon", "delta"):
        small = getattr(part, number)
        large = getattr(getattr(policy, limit), number, None)
        if small is not None and large is not None and small > large:
            less, text = exact_text(small), exact_text(large)
            excess = f"{number} {less} exceeds the {limit}'s {number} {text}"
            hint = f"Write at most {text}, or raise the {limit}."
            yield problem_at(f"the {name}'s {excess}.", hint, *path, number)


def _window_problems(policy: Policy) -> Iterator[tuple[str, ...]]:
    """Yield what is wrong with a policy that has a window, what to do, and where."""
    if policy.partition is None or not policy.partition.by_time:
        hint = "Add `partition: {by: week}`, or remove `window`."
        yield "a window counts consecutive parts by time.", hint, "window"
    if not guards_windows(policy.dataset_filter()):
        message = (
            f"filter `{policy.filter.theorem}` cannot guard a window: the price of a "
            "step would differ from window to window."
        )
        hint = "Write `filter: gdp` for Gaussian noise, or `filter: zcdp` for others."
        yield message, hint, "filter"
    reasons = {
        "odometer": "an odometer's reading only grows, and a window's loss falls",
        "population": "a population has no windows",
        "schedule": "a paused schedule would stay paused when a later part fits again",
        "reserved": "a reserved share has one threshold, and each window its own sum",
    }
    places: list[tuple[str, ...]]
    places = [(name,) for name in ("odometer", "population") if getattr(policy, name)]
    if policy.on_exhausted.schedule == "pause":
        places.append(("on_exhausted", "schedule"))
    shares = policy.flows.items()
    places += [("flows", flow, "reserved") for flow, share in shares if share.reserved]
    for path in places:
        yield f"{reasons[path[-1]]}.", f"Remove `{path[-1]}`, or `window`.", *path
