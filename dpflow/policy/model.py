"""The policy of one dataset: its fields, the rules it asks for, and what it pins.

A policy is whole or refused: every rule that it asks for is made when it is read, so
that a mistake shows before the first step and not in the middle of a flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
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
from dpflow.exceptions import InvalidCost
from dpflow.policy.fields import (
    CHECK,
    Budget,
    Check,
    FilterChoice,
    FlowShare,
    OdometerChoice,
    OnExhausted,
    Sourced,
    default_filter,
    idle_problem,
    rule_problem,
)
from dpflow.policy.limits import lifetime_problems, partition_problems, share_problems
from dpflow.policy.partition import Partition
from dpflow.policy.pinned import (
    declared_budget,
    declared_share,
    declared_theorem,
    difference_lines,
    exact_text,
    guarantee_in_words,
    parameters,
)
from dpflow.policy.reserved import with_derived_numbers
from dpflow.policy.types import (
    FLOW_PATTERN,
    Alerts,
    Name,
    Relation,
    Text,
    Unit,
    check_flow_name,
    did_you_mean,
    problem_at,
    raise_all,
)
from dpflow.rounding import number_text


def _default_for_others(fields: dict[str, Any]) -> Literal["refuse", "allow"]:
    """Whoever names flows means these flows; whoever names none means all."""
    return "refuse" if fields.get("flows") else "allow"


class Policy(Sourced):
    """What governs one dataset.

    Reading a file goes through `load_policy`, whose errors name the file and the line;
    constructing a policy in Python raises pydantic's `ValidationError`.
    """

    dataset: Name = Field(
        description="Name of the dataset; one policy governs it.",
        examples=["cdnow"],
    )
    unit: Unit = Field(
        description="Whom the guarantee protects.",
        examples=["customer", "user-week"],
    )
    relation: Relation = Field(
        description="How two datasets that differ in one unit differ. "
        "Sensitivities must be declared for this relation.",
    )
    budget: Budget = Field(
        description="The most that all releases of one term together may lose.",
        examples=[{"epsilon": 3, "delta": "1e-6"}],
    )
    filter: FilterChoice = Field(
        default_factory=default_filter,
        description="The theorem that admits or refuses steps against the budget. "
        "Default: auto, for any mixture of steps.",
        examples=["gdp", {"theorem": "zcdp", "conversion": "tight"}],
    )
    odometer: OdometerChoice | None = Field(
        default=None,
        description="The theorem that bounds, at every moment, what a flow's steps "
        "have lost, each given all that was released before.",
        examples=[{"theorem": "rdp", "delta": "1e-6"}],
    )
    flows: Mapping[str, FlowShare] = Field(
        default_factory=dict,
        description="Flows by name, each with its share of the budget.",
        examples=[{"weekly-report": {"epsilon": 2, "delta": "5e-7"}}],
        json_schema_extra={"propertyNames": {"pattern": FLOW_PATTERN}},
    )
    other_flows: Literal["refuse", "allow"] = Field(
        default_factory=_default_for_others,
        description="Whether flows that are not named may use the dataset. "
        "Default: refuse if any flow is named, else allow.",
        examples=["refuse"],
    )
    partition: Partition | None = Field(
        default=None,
        description="Disjoint parts of the dataset, each with the budget to itself.",
        examples=[{"by": "region"}],
    )
    population: Name | None = Field(
        default=None,
        description="People who are in several datasets; its file caps them together.",
        examples=["customers"],
    )
    lifetime: Budget | None = Field(
        default=None,
        description="The most that all terms of the dataset together may lose. "
        "Required before a second term can open.",
        examples=[{"epsilon": 10, "delta": "1e-5"}],
    )
    alerts: Alerts = Field(
        default=(Decimal("0.5"), Decimal("0.8"), Decimal("0.95")),
        description="Fractions of the filter's threshold that raise an alert, rising.",
        examples=[[0.5, 0.8, 0.95]],
    )
    errors: Literal["redact", "keep"] = Field(
        default="redact",
        description="What a failing body's exception shows in Prefect: its type only, "
        "or all of it. Its text may hold private data.",
        examples=["redact"],
    )
    on_exhausted: OnExhausted = Field(
        default=OnExhausted(),
        description="What happens when a budget is exhausted.",
        examples=[{"flow": "halt", "schedule": "pause"}],
    )
    data_version: Text = Field(
        default="1",
        description="Version of the data; a new one lets releases be made anew.",
        examples=["1", "2026-11"],
    )
    check: Check = CHECK

    @model_validator(mode="after")
    def _whole(self) -> Self:
        raise_all("Policy", self._problems())
        return self

    # The rules

    def dataset_filter(self) -> Filter:
        """Make the filter of the whole dataset."""
        return self._filter(self.budget.epsilon, self.budget.delta)

    def whole_filter(self) -> Filter | None:
        """Make the filter of all partitions by time together; None without a cap."""
        if self.partition is None or not self.partition.by_time or not self.lifetime:
            return None
        return self._filter(self.lifetime.epsilon, self.lifetime.delta)

    @property
    def promised(self) -> Budget:
        """What a term counts towards the lifetime; parts by time may use up all."""
        return (self.lifetime if self.whole_filter() else None) or self.budget

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
        return make_odometer(choice.theorem, delta=exact_text(delta), **options)

    def halt_at(self, flow: str | None) -> Fraction | None:
        """Return the reading that no step of the flow may pass; None if no limit."""
        share = self._share(flow)
        if share is None or share.halt_at_epsilon is None:
            return None
        return Fraction(share.halt_at_epsilon)

    def _share(self, flow: str | None) -> FlowShare | None:
        return None if flow is None else self.flows.get(flow)

    def _filter(self, epsilon: Decimal, delta: Decimal) -> Filter:
        numbers = {"epsilon": exact_text(epsilon), "delta": exact_text(delta)}
        return make_filter(self.filter.theorem, **numbers, **self.filter.options)

    # What must hold between the fields

    def _problems(self) -> Iterator[InitErrorDetails]:
        found = list(self._rule_problems())
        # A plan is solved for rules, so they come first.
        solved = (
            []
            if found
            else [
                flow
                for flow, share in self.flows.items()
                if share.plan or share.reserved
            ]
        )
        broken = rule_problem(self.pinned, "flows", *solved[:1]) if solved else None
        yield from (found if broken is None else [broken])

    def _rule_problems(self) -> Iterator[InitErrorDetails]:
        filter_problem = rule_problem(
            lambda: self._related(self.dataset_filter()), "filter"
        )
        if filter_problem:
            yield filter_problem
        odometer_problem = rule_problem(
            lambda: self._related(self.flow_odometer(None)), "odometer"
        )
        if odometer_problem:
            yield odometer_problem
        yield from lifetime_problems(self.budget, self.lifetime)
        if self.partition is not None:
            yield from partition_problems(self.partition, self.unit, self.relation)
        if not filter_problem and (
            broken := rule_problem(self.whole_filter, "lifetime")
        ):
            yield broken
        for flow, share in self.flows.items():
            place = ("flows", flow)
            one_order = self.filter.theorem != "rdp" or "order" in self.filter.options
            if share.reserved and not one_order:
                message = "a reserved share needs one declared order of renyi."
                hint = "Write `filter: {theorem: rdp, order: 16}`, or another order."
                yield problem_at(message, hint, *place, "reserved")
            name_problem = check_flow_name(flow)
            if name_problem:
                yield problem_at(*name_problem, *place, value=flow)
            excess = list(share_problems(self.budget, share, place))
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

    def _filter_problems(
        self, flow: str, place: tuple[str, ...]
    ) -> Iterator[InitErrorDetails]:
        broken = rule_problem(lambda: self.flow_filter(flow), *place)
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
        broken = rule_problem(lambda: self.flow_odometer(flow), *place)
        if broken:
            yield broken
            return
        odometer = self.flow_odometer(flow)
        idle = odometer.read(odometer.zero()) if odometer else 0.0
        if idle >= Fraction(halt):
            yield problem_at(
                *idle_problem(self.odometer, idle, halt), *place, value=halt
            )

    # What a ledger keeps

    def declared(self) -> dict[str, Any]:
        """Return what the policy says about its guarantee, without derived numbers.

        Equal declarations give equal JSON, however their numbers are spelt. This is
        what a ledger compares a file with.
        """
        flows = {name: declared_share(self.flows[name]) for name in sorted(self.flows)}
        return {
            **self._kept_as_declared(),
            "filter": declared_theorem(self.filter),
            "odometer": declared_theorem(self.odometer),
            "flows": flows,
        }

    def pinned(self) -> dict[str, Any]:
        """Return everything on which the guarantee rests, with derived numbers.

        Equal guarantees give equal JSON: `3` and `3.00` pin identically.
        """
        whole = self.whole_filter()
        return with_derived_numbers(
            {
                **self._kept_as_declared(),
                **({} if whole is None else {"whole": parameters(whole)}),
                "filter": parameters(self.dataset_filter()),
                "odometer": parameters(self.flow_odometer(None)),
                "flows": {flow: self._pinned_flow(flow) for flow in sorted(self.flows)},
            }
        )

    def _kept_as_declared(self) -> dict[str, Any]:
        """Return the fields from which nothing is derived; empty ones are left out."""
        found: dict[str, Any] = {
            "dataset": self.dataset,
            "unit": self.unit,
            "relation": self.relation,
            "budget": declared_budget(self.budget),
            "other_flows": self.other_flows,
        }
        if self.lifetime is not None:
            found["lifetime"] = declared_budget(self.lifetime)
        if self.partition is not None:
            found["partition"] = self.partition.model_dump(exclude_none=True)
        for name in ("population", "source"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        return found

    def _pinned_flow(self, flow: str) -> dict[str, Any]:
        return {
            **declared_share(self.flows[flow]),
            "filter": parameters(self.flow_filter(flow)),
            "odometer": parameters(self.flow_odometer(flow)),
        }

    def differences(self, pinned: Mapping[str, Any]) -> list[str]:
        """Compare with what a ledger has pinned.

        Args:
            pinned: What `pinned` returned when the policy was applied.

        Returns:
            Lines such as "budget.epsilon: ledger 3, file 4"; none if nothing on
            which the guarantee rests has changed.
        """
        return difference_lines(pinned, self.pinned())

    def guarantee_sentence(self) -> str:
        """Say what the policy guarantees, and on which assumptions."""
        return guarantee_in_words(self._kept_as_declared())
