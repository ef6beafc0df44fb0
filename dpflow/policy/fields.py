"""The parts of a policy: the budget, theorems with their options, the flows' shares.

Everything here is frozen and refuses fields that it does not know.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from importlib import import_module
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails

from dpflow.accounting import FILTERS, ODOMETERS
from dpflow.exceptions import DpflowError, InvalidCost
from dpflow.interrupts import without_interrupts
from dpflow.policy.about import TEXTS, About
from dpflow.policy.types import (
    CostText,
    Delta,
    Epsilon,
    Percent,
    Relation,
    Unit,
    Weight,
    did_you_mean,
    one_spelling,
    problem,
    problem_at,
    raise_all,
    read_decimal,
    shorten,
    split_hint,
)

#: What a policy gives to a theorem elsewhere.
_GIVEN = {
    "epsilon": "Write it in `budget`, or in a flow's share.",
    "delta": "Write it in `budget`, or in a flow's share.",
    "halt_at_epsilon": "Give it to a flow: `flows: {NAME: {halt_at_epsilon: 3}}`.",
    "members": "The ledger pins them.",
}
#: No plan needs more, and the digits of its noise distinguish this many runs.
MOST_RUNS = 10**5


class Record(BaseModel):
    """A frozen part of a policy that refuses fields that it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        field_title_generator=lambda name, _: name.replace("_", " ").capitalize(),
    )
    #: Fields that a declaration leaves out where they are empty.
    sparse: ClassVar[Collection[str]] = ()

    @model_serializer(mode="wrap")
    def _write_declared(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {k: v for k, v in write(self).items() if v or k not in self.sparse}


class Budget(Record):
    """The most that all releases of one term together may lose."""

    epsilon: Epsilon = Field(
        description="Epsilon of the guarantee, above 0.", examples=[3, "0.5"]
    )
    delta: Delta = Field(
        default=Decimal(0),
        description="Delta of the guarantee, in [0, 1); well below 1 / people.",
        examples=["1e-6", 0],
    )


class Check(Record):
    """Public facts for `dpflow policy check`; no part of the guarantee."""

    people: int | None = Field(
        default=None,
        ge=1,
        le=10**12,
        strict=True,
        description="Approximate number of privacy units, far below 1 / delta.",
        examples=[23570],
    )


class TheoremChoice(BaseModel):
    """A theorem by name, with options of its own.

    The short form is the name alone. Options stay as they are written and are passed
    on to the theorem, which alone knows what they mean.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    #: Where the names are.
    theorems: ClassVar[Mapping[str, str]] = {}
    kind: ClassVar[str] = "theorem"

    theorem: str = Field(description="Name of the theorem.", examples=["gdp"])

    @property
    def options(self) -> dict[str, Any]:
        """The theorem's own options, as written in the policy."""
        return dict(self.model_extra or {})

    def to_declared(self) -> dict[str, Any]:
        """Return the theorem and its options as they were given, in one spelling."""
        return {name: one_spelling(v) for name, v in self if v is not None}

    def arguments(self) -> Collection[str]:
        """Return the names of what the theorem's constructor takes."""
        module, _, name = self.theorems[self.theorem].partition(":")
        return inspect.signature(getattr(import_module(module), name)).parameters

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        if isinstance(value, str):
            return {"theorem": value}
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            message = f"{cls.kind} must be a theorem, got {shorten(value)}."
            hint = "Write its name, or {theorem: NAME, option: value}."
            raise problem(message, hint)
        fields = {k: v for k, v in value.items() if k in cls.model_fields}
        options = {k: v for k, v in value.items() if k not in cls.model_fields}
        return fields | {k: _plain(v, str(k)) for k, v in options.items()}

    @field_validator("theorem")
    @classmethod
    def _check_theorem(cls, value: str) -> str:
        if value not in cls.theorems:
            message = f"there is no {cls.kind} {shorten(value)}."
            raise problem(message, did_you_mean(value, cls.theorems))
        return value

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        try:
            own = {*self.arguments()}.difference(_GIVEN)
        except ImportError as error:
            message = f"the {self.kind} {self.theorem!r} cannot be loaded: {error}."
            raise problem(message, "Install what it needs.") from error
        problems = (
            problem_at(
                f"the {self.kind} {self.theorem!r} has no option {option!r}.",
                _GIVEN.get(option) or did_you_mean(option, own),
                option,
            )
            for option in sorted(self.options.keys() - own)
        )
        raise_all(type(self).__name__, problems)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Accept the short form too, and offer the theorems that exist."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        names = {"type": "string", "enum": sorted(cls.theorems)}
        schema["properties"]["theorem"] |= {**names, "examples": sorted(cls.theorems)}
        return _with_short_form(schema, cls.kind.capitalize(), names)


class FilterChoice(TheoremChoice):
    """The theorem that admits or refuses steps, by name or with options."""

    theorems = FILTERS
    kind = "filter"


class OdometerChoice(TheoremChoice):
    """The theorem that reads out the loss so far, by name or with options."""

    theorems = ODOMETERS
    kind = "odometer"

    delta: Delta | None = Field(
        default=None,
        description="Probability that a reading fails. Default: the budget's delta.",
        examples=["1e-6"],
    )


class PlannedStep(Record):
    """One step of a planned run: a weight, for solved noise, or the step's own cost."""

    sparse = ("weight", "mechanism", "cost")

    weight: Weight | None = Field(
        default=None,
        description="Precision of the step, relative to the run's other steps.",
        examples=[2],
    )
    mechanism: Literal["Gaussian", "Laplace"] | None = Field(
        default=None,
        description="Mechanism of the solved noise. Default: Gaussian.",
        examples=["Laplace"],
    )
    cost: CostText | None = Field(
        default=None,
        description="Upper bound of the cost of a step that declares its own noise.",
        examples=["Gaussian(sensitivity=1, noise_multiplier=20)"],
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        if isinstance(value, cls):
            return value
        step = dict(value) if isinstance(value, Mapping) else {"weight": value}
        if "cost" not in step:
            step["mechanism"] = step.get("mechanism") or "Gaussian"
        return step

    @model_validator(mode="after")
    def _weight_or_cost(self) -> Self:
        if (self.weight is None, self.mechanism is None) != (bool(self.cost),) * 2:
            message = "a planned step has a weight or a cost."
            hint = "Write a number, {weight: 2, mechanism: Laplace}, or {cost: COST}."
            raise problem(message, hint)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Accept the short form, too."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        weight = schema["properties"]["weight"]["anyOf"]
        return _with_short_form(schema, "Planned step", *weight)


class Plan(Record):
    """Runs for which a flow's budget lasts, and the steps of one run."""

    runs: int = Field(
        ge=1,
        le=MOST_RUNS,
        strict=True,
        description="Number of runs that fit an empty account with the solved noise.",
        examples=[52],
    )
    steps: Mapping[str, PlannedStep] = Field(
        min_length=1,
        description="Steps of one run, by name. Each runs once.",
        examples=[{"revenue": 2, "active_customers": 1}],
    )


class FlowShare(Record):
    """What one flow may use of the dataset's budget, and where it halts."""

    sparse = ("plan", "reserved", "share")

    epsilon: Epsilon | None = Field(
        default=None,
        description="Epsilon of the flow's own filter, at most the budget's.",
        examples=[2],
    )
    delta: Delta | None = Field(
        default_factory=lambda data: Decimal(0) if data.get("epsilon") else None,
        description="Delta of the flow's own filter, at most the budget's. Default: 0.",
        examples=["5e-7"],
    )
    share: Percent | None = Field(
        default=None,
        description="Part of the budget's threshold, in place of epsilon and delta.",
        examples=["70%"],
    )
    halt_at_epsilon: Epsilon | None = Field(
        default=None,
        description="Reading of the odometer that no step of the flow may pass.",
        examples=[3],
    )

    reserved: bool = Field(
        default=False,
        strict=True,
        description="Whether all other charges together have the rest of the budget.",
        examples=[True],
    )
    plan: Plan | None = Field(
        default=None,
        description="Runs and steps for which the flow's noise is solved.",
        examples=[{"runs": 52, "steps": {"revenue": 2, "active_customers": 1}}],
    )

    @model_validator(mode="after")
    def _has_epsilon(self) -> Self:
        needs = "reserved" if self.reserved else "delta"
        if self.share is not None and (self.epsilon, self.delta) != (None, None):
            message = "a share is a percentage, or an epsilon and a delta."
            hint = "Drop share, or drop epsilon and delta."
            raise_all("FlowShare", [problem_at(message, hint, "share")])
        is_limited = self.epsilon is not None or self.share is not None
        if not is_limited and (self.reserved or self.delta is not None):
            message = f"a share with {needs} needs an epsilon."
            hint = f"Add epsilon, or drop {needs}."
            raise_all("FlowShare", [problem_at(message, hint, needs)])
        return self


class OnExhausted(Record):
    """What happens when a budget is exhausted."""

    flow: Literal["halt", "skip"] = Field(
        default="halt",
        description="halt: the rest of the flow run does not run, and it ends as "
        "BudgetExhausted. skip: only what needs the refused step does not run.",
        examples=["halt", "skip"],
    )
    schedule: Literal["pause", "keep"] = Field(
        default="keep",
        description="Whether the deployment's schedule is paused.",
        examples=["pause"],
    )


class Governing(Record):
    """What governs a dataset, or a population of several datasets."""

    unit: Unit = Field(
        description="Whom the guarantee protects.", examples=["customer", "user-week"]
    )
    relation: Relation = Field(
        description="Difference of neighbouring datasets, as for sensitivities."
    )
    budget: Budget = Field(
        description="The most that all releases of one term together may lose.",
        examples=[{"epsilon": 3, "delta": "1e-6"}],
    )
    filter: FilterChoice = Field(
        default_factory=lambda: FilterChoice(theorem="auto"),
        description="The theorem that admits or refuses steps. Default: auto.",
        examples=["gdp", {"theorem": "zcdp", "conversion": "tight"}],
    )
    lifetime: Budget | None = Field(
        default=None,
        description="The most that all terms together lose; a second term needs it.",
        examples=[{"epsilon": 10, "delta": "1e-5"}],
    )
    check: Check = Field(
        default=Check(),
        description="Public facts for `dpflow policy check`; no part of the guarantee.",
        examples=[{"people": 23570}],
    )
    about: About = Field(
        default_factory=dict,
        description="Free texts for an entry of the registry of DP deployments.",
        examples=[{"data_curators": "Example Shop", "data_product_region": "EU"}],
        json_schema_extra={"propertyNames": {"enum": [*sorted(TEXTS)]}},
    )


# Problems with rules


def rule_problem(make: Callable[[], object], *path: str) -> list[InitErrorDetails]:
    """Make a rule, or what rests on it; return the problem, if any, where to blame."""
    try:
        make()
    except without_interrupts(
        DpflowError, ValueError, ArithmeticError, LookupError
    ) as error:
        message, hint = split_hint(error)
        details = error.details if isinstance(error, InvalidCost) else {}
        name = details.get("name")
        if path == ("flows",) and name in FlowShare.model_fields:
            # What is derived from shares names the flow.
            path = (*path, details["value"])
        elif name == "other_flows":
            path = (name,)
        elif path[0] == "flows":
            hint = f"{hint} A share uses the dataset's filter and options.".lstrip()
            name = name if name in FlowShare.model_fields else None
        elif path[0] == "filter" and name in Budget.model_fields:
            path = ("budget",)
        blamed = path if name in (None, path[-1]) else (*path, name)
        hint = hint or f"Check the options of the {path[0]}."
        return [problem_at(message, hint, *blamed)]
    return []


# Options


def _plain(value: object, option: str) -> object:
    """Return an option's value as a YAML file gives it: exact, and no object."""
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int | float | Decimal):
        number = read_decimal(value, option)
        return value if isinstance(value, int) else number
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, option) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, option) for item in value]
    message = f"the option {option} cannot be {shorten(value)}."
    raise problem(message, "Use text, a flag, a number, a list or a mapping.")


def _with_short_form(
    schema: JsonSchemaValue, title: str, *short: JsonSchemaValue
) -> JsonSchemaValue:
    """Return the schema of a mapping that a short form can stand for."""
    description = schema.pop("description")
    schema["title"] = f"{title} with options"
    return {"title": title, "description": description, "anyOf": [*short, schema]}
