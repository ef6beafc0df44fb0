"""The policy of one dataset: its fields, the rules it asks for, and what it pins.

A policy is whole or refused: every rule that it asks for is made when it is read, so
that a mistake shows before the first step and not in the middle of a flow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import InitErrorDetails

from dpflow.accounting import (
    ODOMETERS,
    Filter,
    Odometer,
    Rule,
    make_filter,
    make_odometer,
)
from dpflow.exceptions import InvalidCost
from dpflow.policy_fields import (
    RULE_ERRORS,
    Budget,
    FilterChoice,
    FlowShare,
    OdometerChoice,
    OnExhausted,
    Record,
)
from dpflow.policy_types import (
    FLOW_PATTERN,
    Alert,
    Name,
    Text,
    check_flow_name,
    did_you_mean,
    problem,
    problem_at,
    raise_all,
    split_hint,
)
from dpflow.policy_yaml import KeyPath, key_text
from dpflow.rounding import number_text, short_up


def _default_for_others(fields: dict[str, Any]) -> Literal["refuse", "allow"]:
    """Whoever names flows means these flows; whoever names none means all."""
    return "refuse" if fields.get("flows") else "allow"


class Policy(Record):
    """What governs one dataset.

    Reading a file goes through `load_policy`, whose errors name the file and the line;
    constructing a policy in Python raises pydantic's `ValidationError`.
    """

    dataset: Name = Field(
        title="Dataset",
        description="Name of the dataset; one policy governs it.",
        examples=["cdnow"],
    )
    unit: Text = Field(
        title="Privacy unit",
        description="Whom the guarantee protects.",
        examples=["customer", "user-week"],
    )
    relation: Literal["add-or-remove", "replace-one"] = Field(
        title="Neighbouring relation",
        description="How two datasets that differ in one unit differ. "
        "Sensitivities must be declared for this relation.",
        examples=["add-or-remove"],
    )
    budget: Budget = Field(
        title="Budget",
        description="The most that all releases together may lose.",
        examples=[{"epsilon": 3, "delta": "1e-6"}],
    )
    filter: FilterChoice = Field(
        title="Filter",
        description="The theorem that admits or refuses steps against the budget.",
        examples=["gaussian", {"theorem": "concentrated", "conversion": "tight"}],
    )
    odometer: OdometerChoice | None = Field(
        default=None,
        title="Odometer",
        description="The theorem that reads out what each flow has lost so far.",
        examples=[{"theorem": "renyi", "delta": "1e-6"}],
    )
    flows: Mapping[str, FlowShare] = Field(
        default_factory=dict,
        title="Flows",
        description="Flows by name, each with its share of the budget.",
        examples=[{"weekly-report": {"epsilon": 2, "delta": "5e-7"}}],
        json_schema_extra={"propertyNames": {"pattern": FLOW_PATTERN}},
    )
    other_flows: Literal["refuse", "allow"] = Field(
        default_factory=_default_for_others,
        title="Other flows",
        description="Whether flows that are not named may use the dataset. "
        "Default: refuse if any flow is named, else allow.",
        examples=["refuse"],
    )
    alerts: tuple[Alert, ...] = Field(
        default=(Decimal("0.5"), Decimal("0.8"), Decimal("0.95")),
        title="Alerts",
        description="Fractions of the filter's threshold that raise an alert, rising.",
        examples=[[0.5, 0.8, 0.95]],
    )
    errors: Literal["redact", "keep"] = Field(
        default="redact",
        title="Errors",
        description="What a failing body's exception shows in Prefect: its type only, "
        "or all of it. Its text may hold private data.",
        examples=["redact"],
    )
    on_exhausted: OnExhausted = Field(
        default=OnExhausted(),
        title="On exhausted",
        description="What happens when a budget is exhausted.",
        examples=[{"flow": "halt", "schedule": "pause"}],
    )
    version: Text = Field(
        default="1",
        title="Version",
        description="Version of the data; a new one lets releases be made anew.",
        examples=["1", "2026-11"],
    )

    @field_validator("alerts")
    @classmethod
    def _rising(cls, value: tuple[Decimal, ...]) -> tuple[Decimal, ...]:
        if any(high <= low for low, high in pairwise(value)):
            message = f"alerts must rise strictly, got {[str(x) for x in value]}."
            raise problem(message, "Sort them and drop repetitions.")
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        raise_all("Policy", self._problems())
        return self

    # The rules

    def dataset_filter(self) -> Filter:
        """Make the filter of the whole dataset."""
        return self._filter(self.budget.epsilon, self.budget.delta)

    def flow_filter(self, flow: str | None) -> Filter | None:
        """Make the filter of a flow's own share; None if it has no share.

        Args:
            flow: Name of the flow; None outside any flow.
        """
        share = self._share(flow)
        if share is None or share.epsilon is None:
            return None
        return self._filter(share.epsilon, share.delta or Decimal(0))

    def flow_odometer(self, flow: str | None) -> Odometer | None:
        """Make the odometer of a flow; None if the policy asks for none.

        Constants that the policy does not give are tuned for the reading at which the
        flow halts, or for the budget's epsilon if it halts nowhere.
        """
        if self.odometer is None:
            return None
        choice, options = self.odometer, self.odometer.options
        delta = self.budget.delta if choice.delta is None else choice.delta
        if choice.takes("halt_at_epsilon"):
            halt = self.halt_at(flow)
            target = Fraction(self.budget.epsilon) if halt is None else halt
            options["halt_at_epsilon"] = number_text(target)
        return make_odometer(choice.theorem, delta=_text(delta), **options)

    def halt_at(self, flow: str | None) -> Fraction | None:
        """Return the reading that no step of the flow may pass; None if no limit."""
        share = self._share(flow)
        if share is None or share.halt_at_epsilon is None:
            return None
        return Fraction(share.halt_at_epsilon)

    def covers_flow(self, flow: str | None) -> bool:
        """Say whether a flow may use the dataset at all."""
        return self._share(flow) is not None or self.other_flows == "allow"

    def _share(self, flow: str | None) -> FlowShare | None:
        return None if flow is None else self.flows.get(flow)

    def _filter(self, epsilon: Decimal, delta: Decimal) -> Filter:
        numbers = {"epsilon": _text(epsilon), "delta": _text(delta)}
        return make_filter(self.filter.theorem, **numbers, **self.filter.options)

    # What must hold between the fields

    def _problems(self) -> Iterator[InitErrorDetails]:
        filter_problem = _attempt(
            lambda: self._related(self.dataset_filter()), "filter"
        )
        if filter_problem:
            yield filter_problem
        odometer_problem = _attempt(
            lambda: self._related(self.flow_odometer(None)), "odometer"
        )
        if odometer_problem:
            yield odometer_problem
        for flow, share in self.flows.items():
            place = ("flows", flow)
            name_problem = check_flow_name(flow)
            if name_problem:
                yield problem_at(*name_problem, *place, value=flow)
            excess = list(self._excess(share, place))
            yield from excess
            if not excess and not filter_problem:
                yield from self._filter_problems(flow, place)
            if share.halt_at_epsilon is not None and not odometer_problem:
                yield from self._halt_problems(flow, share.halt_at_epsilon, place)

    def _related(self, rule: Rule | None) -> Rule | None:
        """Refuse a theorem that does not hold under the policy's relation."""
        if rule is not None and self.relation not in rule.relations:
            holds = " and ".join(rule.relations)
            msg = (
                f"{rule.theorem!r} holds for {holds}, not for {self.relation}. Choose "
                "another theorem, or another relation if the data allows it."
            )
            raise InvalidCost(msg)
        return rule

    def _excess(
        self, share: FlowShare, place: tuple[str, ...]
    ) -> Iterator[InitErrorDetails]:
        for name in ("epsilon", "delta"):
            asked, whole = getattr(share, name), getattr(self.budget, name)
            if asked is not None and asked > whole:
                message = (
                    f"the share's {name} {_text(asked)} exceeds the budget's "
                    f"{name} {_text(whole)}."
                )
                hint = f"Give the flow at most {_text(whole)}, or raise the budget."
                yield problem_at(message, hint, *place, name, value=asked)

    def _filter_problems(
        self, flow: str, place: tuple[str, ...]
    ) -> Iterator[InitErrorDetails]:
        broken = _attempt(lambda: self.flow_filter(flow), *place)
        if broken:
            yield broken

    def _halt_problems(
        self, flow: str, halt: Decimal, place: tuple[str, ...]
    ) -> Iterator[InitErrorDetails]:
        place = (*place, "halt_at_epsilon")
        if self.odometer is None:
            hint = f"Add `odometer: NAME`, or drop it. {did_you_mean('', ODOMETERS)}"
            message = "halt_at_epsilon needs an odometer."
            yield problem_at(message, hint, *place, value=halt)
            return
        broken = _attempt(lambda: self.flow_odometer(flow), *place)
        if broken:
            yield broken
            return
        odometer = self.flow_odometer(flow)
        idle = odometer.read(odometer.zero()) if odometer else 0.0
        if idle >= Fraction(halt):
            yield problem_at(*self._idle_problem(idle, halt), *place, value=halt)

    def _idle_problem(self, idle: float, halt: Decimal) -> tuple[str, str]:
        choice = self.odometer
        theorem, tuned = (choice.theorem, not choice.options) if choice else ("", True)
        reading = "infinity" if math.isinf(idle) else short_up(Fraction(idle))
        message = (
            f"before any step, the odometer {theorem!r} already reads {reading}, at "
            f"or above halt_at_epsilon {_text(halt)}, so that no step could ever run."
        )
        tune = "" if tuned else "drop the odometer's options so that it is tuned, "
        hint = f"Raise halt_at_epsilon above {reading}, {tune}"
        return message, f"{hint}or raise the odometer's delta."

    # What a ledger keeps

    def pinned(self) -> dict[str, Any]:
        """Return everything on which the guarantee rests, with derived numbers.

        Equal guarantees give equal JSON: `3` and `3.00` pin identically.
        """
        return {
            "dataset": self.dataset,
            "unit": self.unit,
            "relation": self.relation,
            "budget": {
                "epsilon": _text(self.budget.epsilon),
                "delta": _text(self.budget.delta),
            },
            "filter": _parameters(self.dataset_filter()),
            "odometer": _parameters(self.flow_odometer(None)),
            "flows": {flow: self._pinned_flow(flow) for flow in sorted(self.flows)},
            "other_flows": self.other_flows,
        }

    def _pinned_flow(self, flow: str) -> dict[str, Any]:
        rule, halt = self.flow_filter(flow), self.halt_at(flow)
        return {
            "epsilon": None if rule is None else number_text(rule.epsilon),
            "delta": None if rule is None else number_text(rule.delta),
            "halt_at_epsilon": None if halt is None else number_text(halt),
            "filter": _parameters(rule),
            "odometer": _parameters(self.flow_odometer(flow)),
        }

    def differences(self, pinned: Mapping[str, Any]) -> list[str]:
        """Compare with what a ledger has pinned.

        Args:
            pinned: What `pinned` returned when the policy was applied.

        Returns:
            Lines such as "budget.epsilon: ledger 3, file 4"; none if nothing on
            which the guarantee rests has changed.
        """
        found = dict(_differences(pinned, self.pinned()))
        return [
            f"{key_text(path)}: {line}"
            for path, line in found.items()
            # A filter repeats the numbers of its budget; say each change once.
            if path[-2:-1] != ("filter",) or found.get(_budget_path(path)) != line
        ]

    def guarantee_sentence(self) -> str:
        """Say in one sentence what the policy guarantees, and on which assumption."""
        epsilon, delta = _readable(self.budget.epsilon), _readable(self.budget.delta)
        return (
            f"Every {self.unit} ({self.relation}): all releases from dataset "
            f"{self.dataset!r} governed by this ledger in one term together are "
            f"(epsilon = {epsilon}, delta = {delta})-differentially private, if every "
            "declared sensitivity is right and every step draws the noise it declares."
        )


def _text(number: Decimal) -> str:
    return number_text(Fraction(number))


def _readable(number: Decimal) -> str:
    """Write a number as people do, 1e-06 or 3, unless a float would alter it."""
    text = repr(float(number)).removesuffix(".0")
    return text if Decimal(text) == number else _text(number)


def _parameters(rule: Rule | None) -> dict[str, Any] | None:
    return None if rule is None else rule.parameters()


def _attempt(make: Callable[[], Rule | None], *place: str) -> InitErrorDetails | None:
    """Make a rule; return the problem, at the field that is to blame, if it fails."""
    try:
        make()
    except RULE_ERRORS as error:
        message, hint = split_hint(error)
        name = error.name if isinstance(error, InvalidCost) else None
        if place[0] == "flows":
            hint = f"{hint} A share uses the dataset's filter and options.".lstrip()
            blamed = (*place, name) if name in FlowShare.model_fields else place
        elif place[0] == "filter" and name in Budget.model_fields:
            blamed = ("budget", name)
        else:
            blamed = place if name in (None, place[-1]) else (*place, name)
        hint = hint or f"Check the options of the {place[0]}."
        return problem_at(message, hint, *blamed)
    return None


def _differences(
    ledger: object, file: object, *path: str
) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(ledger, Mapping) and isinstance(file, Mapping):
        for key in sorted(ledger.keys() | file.keys()):
            yield from _differences(ledger.get(key), file.get(key), *path, key)
    elif ledger != file:
        yield path, f"ledger {_value_text(ledger)}, file {_value_text(file)}"


def _budget_path(path: KeyPath) -> KeyPath:
    around = path[:-2] or ("budget",)
    return (*around, path[-1])


def _value_text(value: object) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
