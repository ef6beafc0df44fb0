"""The parts of a policy: the budget, theorems with their options, the flows' shares.

Everything here is frozen and refuses fields that it does not know.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from dpflow.accounting import FILTERS, ODOMETERS
from dpflow.exceptions import DpflowError, InvalidCost
from dpflow.policy.types import (
    CostText,
    Delta,
    Epsilon,
    Name,
    Weight,
    did_you_mean,
    problem,
    problem_at,
    raise_all,
    read_decimal,
    shown,
    split_hint,
)
from dpflow.rounding import number_text, short_up

#: No plan needs more, and the digits of its noise tell so many runs apart.
MOST_RUNS = 10**5
#: What a theorem may raise on options that it cannot use.
RULE_ERRORS = (
    DpflowError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    ImportError,
)


class Record(BaseModel):
    """A frozen part of a policy that refuses fields that it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        field_title_generator=lambda name, _: name.replace("_", " ").capitalize(),
    )


class Sourced(Record):
    """What may name the data that it governs."""

    source: Name | None = Field(
        default=None,
        description="Public name of the data behind the dataset; one ledger governs "
        "it, and any other needs a part of that one's budget.",
        examples=["warehouse.sales.customers"],
    )


class Budget(Record):
    """The most that all releases of one term together may lose."""

    epsilon: Epsilon = Field(
        description="Epsilon of the guarantee, above 0.",
        examples=[3, "0.5"],
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
        description="Approximate number of privacy units; delta should be well below "
        "1 / people.",
        examples=[23570],
    )


CHECK: Any = Field(
    default=Check(),
    description="Public facts for `dpflow policy check`; no part of the guarantee.",
    examples=[{"people": 23570}],
)


class TheoremChoice(BaseModel):
    """A theorem by name, with options of its own.

    The short form is the name alone. Options are kept as they are written and passed
    on to the theorem, which alone knows what they mean.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    #: Where the names are, and what the policy gives to the theorem by itself.
    known: ClassVar[Mapping[str, str]] = {}
    kind: ClassVar[str] = "theorem"
    given: ClassVar[Mapping[str, str]] = {}

    theorem: str = Field(
        description="Name of the theorem.",
        examples=["gdp"],
    )

    @property
    def options(self) -> dict[str, Any]:
        """The theorem's own options, as written in the policy."""
        return dict(self.model_extra or {})

    @classmethod
    def theorem_class(cls, theorem: str) -> type:
        """Load the class behind a theorem's name."""
        module, _, name = cls.known[theorem].partition(":")
        found: type = getattr(import_module(module), name)
        return found

    def takes(self, option: str) -> bool:
        """Say whether the theorem's constructor takes an argument of this name."""
        names, open_ended = _parameters(self.theorem_class(self.theorem))
        return open_ended or option in names

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        if isinstance(value, str):
            return {"theorem": value}
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            message = f"{cls.kind} must be a theorem, got {shown(value)}."
            hint = "Write its name, or {theorem: NAME, option: value}."
            raise problem(message, hint)
        fields = {k: v for k, v in value.items() if k in cls.model_fields}
        options = {k: v for k, v in value.items() if k not in cls.model_fields}
        raise_all(cls.__name__, _unusable(options))
        return fields | {k: _plain(v) for k, v in options.items()}

    @field_validator("theorem")
    @classmethod
    def _known_theorem(cls, value: str) -> str:
        if value not in cls.known:
            message = f"there is no {cls.kind} {shown(value)}."
            raise problem(message, did_you_mean(value, cls.known))
        return value

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        try:
            names, open_ended = _parameters(self.theorem_class(self.theorem))
        except ImportError as error:
            message = f"the {self.kind} {self.theorem!r} cannot be loaded: {error}."
            raise problem(message, "Install what it needs.") from error
        # The members of `auto` are pinned, and not for a policy to choose.
        own = names - self.given.keys() - {"delta", "members"}
        problems = []
        for option, value in self.options.items():
            if option in self.given:
                message = f"{option} is not an option of the {self.kind}."
                hint = self.given[option]
            elif open_ended or option in own:
                continue
            else:
                message = f"the {self.kind} {self.theorem!r} has no option {option!r}."
                hint = did_you_mean(option, own) if own else "It has no options."
            problems.append(problem_at(message, hint, option, value=value))
        raise_all(type(self).__name__, problems)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Accept the short form too, and offer the theorems that exist."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        names = {"type": "string", "enum": sorted(cls.known)}
        title, description = cls.kind.capitalize(), schema.pop("description")
        schema["properties"]["theorem"] |= {**names, "examples": sorted(cls.known)}
        schema["title"] = f"{title} with options"
        return {
            "title": title,
            "description": description,
            "anyOf": [{**names, "title": f"{title} by name"}, schema],
        }


class FilterChoice(TheoremChoice):
    """The theorem that admits or refuses steps, by name or with options."""

    known = FILTERS
    kind = "filter"
    given = {
        "epsilon": "It comes from `budget`, or from a flow's share.",
        "delta": "It comes from `budget`, or from a flow's share.",
    }


def default_filter() -> FilterChoice:
    """Return the filter of a policy that declares none."""
    return FilterChoice(theorem="auto")


class OdometerChoice(TheoremChoice):
    """The theorem that reads out the loss so far, by name or with options."""

    known = ODOMETERS
    kind = "odometer"
    given = {
        "halt_at_epsilon": "Give it to a flow: `flows: {NAME: {halt_at_epsilon: 3}}`.",
    }

    delta: Delta | None = Field(
        default=None,
        description="Probability that a reading fails. Default: the budget's delta.",
        examples=["1e-6"],
    )


class PlannedStep(Record):
    """One step of a planned run: a weight, for solved noise, or the step's own cost."""

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
        whole = isinstance(value, Mapping | cls)
        return value if whole else {"weight": value}

    @model_validator(mode="after")
    def _weight_or_cost(self) -> Self:
        if (self.weight is None) is (self.cost is None) or (
            self.cost is not None and self.mechanism is not None
        ):
            message = "a planned step has a weight or a cost."
            hint = "Write a number, {weight: 2, mechanism: Laplace}, or {cost: COST}."
            raise_all("PlannedStep", [problem_at(message, hint)])
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Accept the short form, too."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        description = schema.pop("description")
        schema["title"] = "Planned step with options"
        weight = schema["properties"]["weight"]["anyOf"]
        return {
            "title": "Planned step",
            "description": description,
            "anyOf": [*weight, schema],
        }


class Plan(Record):
    """Runs for which a flow's budget lasts, and the steps of one run."""

    runs: int = Field(
        ge=1,
        le=MOST_RUNS,
        strict=True,
        description="Number of runs. The noise of steps that declare "
        'noise="planned" is solved such that all runs fit an empty account.',
        examples=[52],
    )
    steps: Mapping[str, PlannedStep] = Field(
        min_length=1,
        description="Steps of one run, by name. Each runs once.",
        examples=[{"revenue": 2, "active_customers": 1}],
    )


class FlowShare(Record):
    """What one flow may use of the dataset's budget, and where it halts."""

    epsilon: Epsilon | None = Field(
        default=None,
        description="Epsilon of the flow's own filter, at most the budget's.",
        examples=[2],
    )
    delta: Delta | None = Field(
        default=None,
        description="Delta of the flow's own filter, at most the budget's. Default: 0.",
        examples=["5e-7"],
    )
    halt_at_epsilon: Epsilon | None = Field(
        default=None,
        description="Reading of the odometer that no step of the flow may pass.",
        examples=[3],
    )

    reserved: bool = Field(
        default=False,
        strict=True,
        description="Whether the share is set aside: all other charges together have "
        "the rest of the budget.",
        examples=[True],
    )
    plan: Plan | None = Field(
        default=None,
        description="Runs and steps for which the flow's noise is solved.",
        examples=[{"runs": 52, "steps": {"revenue": 2, "active_customers": 1}}],
    )

    @model_validator(mode="after")
    def _reserved_has_epsilon(self) -> Self:
        if self.reserved and self.epsilon is None:
            message = "a reserved share needs an epsilon."
            hint = "Write such as {epsilon: 2.5, delta: 5e-7, reserved: true}."
            raise_all("FlowShare", [problem_at(message, hint, "reserved")])
        return self

    @model_validator(mode="after")
    def _delta_needs_epsilon(self) -> Self:
        if self.delta is not None and self.epsilon is None:
            message = "a share with a delta needs an epsilon."
            hint = "Add epsilon, or drop delta if only halt_at_epsilon is meant."
            raise_all("FlowShare", [problem_at(message, hint, "delta")])
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


# Problems with rules


def rule_problem(make: Callable[[], object], *place: str) -> InitErrorDetails | None:
    """Make a rule, or what rests on it; return the problem, if any, where to blame."""
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


def idle_problem(choice: OdometerChoice, idle: float, halt: Decimal) -> tuple[str, str]:
    """Say that an odometer reads too much before any step, and what to do."""
    reading = "infinity" if math.isinf(idle) else short_up(Fraction(idle))
    message = (
        f"before any step, the odometer {choice.theorem!r} already reads {reading}, at "
        f"or above halt_at_epsilon {number_text(Fraction(halt))}, so that no step "
        "could ever run."
    )
    tune = "drop the odometer's options so that it is tuned, " if choice.options else ""
    hint = f"Raise halt_at_epsilon above {reading}, {tune}"
    return message, f"{hint}or raise the odometer's delta."


# Options


def _parameters(theorem_class: type) -> tuple[set[str], bool]:
    """Return the constructor's argument names, and whether it takes any others."""
    names, open_ended = set(), False
    for name, parameter in inspect.signature(theorem_class).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            names.add(name)
    return names, open_ended


def _unusable(options: Mapping[Any, Any]) -> list[InitErrorDetails]:
    return [
        problem_at(
            f"the option {name} cannot be {shown(value)}.",
            "Use text, true, false, a finite number, a list or a mapping.",
            str(name),
        )
        for name, value in options.items()
        if not isinstance(name, str) or not _usable(value)
    ]


def _usable(value: object) -> bool:
    if isinstance(value, str | bool):
        return True
    if isinstance(value, int | float | Decimal):
        try:
            return read_decimal(value, "option") is not None
        except PydanticCustomError:
            return False
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _usable(v) for k, v in value.items())
    return isinstance(value, list | tuple) and all(_usable(item) for item in value)


def _plain(value: object) -> object:
    if isinstance(value, float):
        return read_decimal(value, "option")
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
