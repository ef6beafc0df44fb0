"""Exact numbers and names for policy fields, and problems that carry a hint.

A problem names the value, the limit and what to do next; `dpflow.policy` adds the file
and the line.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dpflow.accounting.costs.text import cost_from_text
from dpflow.exceptions import InvalidCost
from dpflow.interrupts import suppress
from dpflow.policy.strict_yaml import NUMBER, exact_decimal
from dpflow.rounding import exact, exact_delta, exact_epsilon, number_text

#: Marks a problem that carries a hint of its own.
PROBLEM = "dpflow"
_NAME_LENGTH = 200
_WORD = r"A-Za-z0-9._:/@\-"
NAME_PATTERN = rf"^[{_WORD}]{{1,{_NAME_LENGTH}}}$"
#: Prefect refuses a name with one of the first four; the others would look like
#: patterns, which there are none of.
_NO_FLOW = "%&<>*?["
FLOW_PATTERN = (
    rf"^[^\s{_NO_FLOW}]([^{_NO_FLOW}]{{0,{_NAME_LENGTH - 2}}}[^\s{_NO_FLOW}])?$"
)
_SHOWN = 60


def problem(message: str, hint: str) -> PydanticCustomError:
    """Make a problem for the field being validated."""
    context = {"message": message, "hint": hint}
    return PydanticCustomError(PROBLEM, "{message} {hint}", context)


def problem_at(message: str, hint: str, *path: str | int) -> InitErrorDetails:
    """Make a problem for a place below the model being validated."""
    return InitErrorDetails(type=problem(message, hint), loc=path, input=None)


def raise_all(title: str, problems: Iterable[InitErrorDetails]) -> None:
    """Raise all problems together, if there are any."""
    result = list(problems)
    if result:
        raise ValidationError.from_exception_data(title, result)


def shorten(value: object) -> str:
    """Write a value for a message, shortened."""
    text = repr(str(value)) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Suggest the nearest word, then list them all."""
    words = sorted(choices)
    if not words:
        return "There are none."
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.65)
    near = near or [choice for choice in words if word and choice.startswith(word)]
    suggestion = f"Did you mean {near[0]!r}? " if near else ""
    return f"{suggestion}Known: {', '.join(words)}."


def split_hint(error: BaseException) -> tuple[str, str]:
    """Split the text of an error into what is wrong and what to do next."""
    text = str(error).strip() or type(error).__name__
    message, _, hint = text.partition(". ")
    return f"{message.rstrip('.')}.", hint


# Numbers


def exact_text(number: Decimal) -> str:
    """Write a number exactly, in one spelling: 3 and 3.00 become the same text."""
    return number_text(Fraction(number))


def one_spelling(value: object) -> object:
    """Write all numbers of an option exactly, in one spelling."""
    if isinstance(value, Mapping):
        return {name: one_spelling(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [one_spelling(part) for part in value]
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return value
    number = exact_decimal(str(value))
    return str(value) if number is None else exact_text(number)


def read_decimal(value: object, name: str) -> Decimal:
    """Read a finite number exactly; a float stands for its shortest decimal."""
    text = float.__repr__(value) if isinstance(value, float) else ""
    # Python refuses to write integers of thousands of digits.
    is_short = type(value) is int and abs(value) < 10**_SHOWN
    if is_short or isinstance(value, str | Decimal):
        text = str(value)
    number = exact_decimal(text)
    if number is None:
        message = f"{name} must be a finite number, got {shorten(value)}."
        raise problem(message, "Write it as a number such as 0.5 or 1e-6.")
    return number


def _number(
    read: Callable[..., Fraction], low: dict[str, Any], high: dict[str, Any]
) -> tuple[BeforeValidator, WithJsonSchema, PlainSerializer]:
    def validate(value: object, info: ValidationInfo) -> Decimal:
        name = info.field_name or "number"
        number = read_decimal(value, name)
        try:
            read(str(number), name=name)
        except InvalidCost as error:
            raise problem(*split_hint(error)) from None
        return number

    number_schema = {"type": "number", **low, **high}
    text_schema = {"type": "string", "pattern": f"^{NUMBER.pattern}$"}
    schema = WithJsonSchema({"anyOf": [number_schema, text_schema]})
    return BeforeValidator(validate), schema, PlainSerializer(exact_text)


_MILLIONTH = Fraction(1, 10**6)
_exact_alert = partial(exact, low=_MILLIONTH, high=1 - _MILLIONTH)
_exact_weight = partial(exact, low=_MILLIONTH, high=1 / _MILLIONTH)

#: An exact epsilon above 0.
Epsilon = Annotated[
    Decimal, *_number(exact_epsilon, {"exclusiveMinimum": 0}, {"maximum": 10000})
]
#: An exact delta in [0, 1).
Delta = Annotated[
    Decimal, *_number(exact_delta, {"minimum": 0}, {"exclusiveMaximum": 1})
]
#: An exact weight, above 0.
Weight = Annotated[
    Decimal, *_number(_exact_weight, {"exclusiveMinimum": 0}, {"maximum": 10**6})
]
#: An exact fraction of a budget, strictly between 0 and 1.
Alert = Annotated[
    Decimal, *_number(_exact_alert, {"exclusiveMinimum": 0}, {"exclusiveMaximum": 1})
]


def _percent(value: str, name: str | None) -> str:
    number = exact_decimal(value[:-1]) if value.endswith("%") else None
    if number is None or not Decimal("0.0001") <= number <= 100:  # noqa: PLR2004
        message = f"{name} must be a percentage, got {shorten(value)}."
        raise problem(message, "Write it such as 70%, from 0.0001% to 100%.")
    return f"{exact_text(number)}%"


#: A part of a budget, such as 70%, in one spelling.
Percent = Annotated[
    str,
    AfterValidator(lambda value, info: _percent(value, info.field_name)),
    WithJsonSchema({"type": "string", "pattern": f"^{NUMBER.pattern}%$"}),
]


def _check_access(value: object) -> object:
    if isinstance(value, Mapping) and [*value] == ["share_each"]:
        return {"share_each": _percent(str(value["share_each"]), "share_each")}
    if value in ("refuse", "allow"):
        return value
    message = f"other_flows must be allow, refuse or a mapping, got {shorten(value)}."
    raise problem(message, "Write a word, or {share_each: 5%}.")


#: Access of flows without a name: none, the whole budget, or a share for each.
OtherFlows = Annotated[
    Literal["refuse", "allow"] | Mapping[Literal["share_each"], Percent],
    BeforeValidator(_check_access),
]


# Names


def _check_name(value: str, info: ValidationInfo) -> str:
    if not re.fullmatch(NAME_PATTERN, value):
        message = f"{info.field_name} {shorten(value)} is not a usable name."
        hint = f"Use 1 to {_NAME_LENGTH} letters a to z or A to Z, digits, . _ : / @ -"
        raise problem(message, hint)
    return value


def check_flow_name(value: str) -> tuple[str, str] | None:
    """Return what is wrong with a flow's name and what to do, if anything is."""
    composed = unicodedata.is_normalized("NFC", value)
    if composed and value.isprintable() and re.fullmatch(FLOW_PATTERN, value):
        return None
    message = f"flow {shorten(value)} is not a usable name."
    hint = f"Use 1 to {_NAME_LENGTH} printable characters, in Unicode's form NFC"
    return message, f"{hint}, without spaces at the ends and none of {_NO_FLOW}."


def _check_text(value: str, info: ValidationInfo, most: int = _NAME_LENGTH) -> str:
    if not value.strip() or len(value) > most or not value.isprintable():
        message = f"{info.field_name} must be printable text, got {shorten(value)}."
        raise problem(message, f"Write 1 to {most} characters on one line.")
    return value


#: The name of a dataset.
Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": NAME_PATTERN}),
]
#: A short text on one line.
Text = Annotated[
    str,
    AfterValidator(_check_text),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": _NAME_LENGTH}),
]


def _check_zone(value: str, info: ValidationInfo) -> str:
    with suppress(KeyError, ValueError, OSError):
        # Each machine has a `localtime` of its own.
        if ZoneInfo(value) and value != "localtime":
            return value
    message = f"{info.field_name} {shorten(value)} is no time zone of this system."
    hint = "Write one such as UTC or Europe/Berlin, or install tzdata."
    raise problem(message, hint)


#: The name of a time zone.
Zone = Annotated[Text, AfterValidator(_check_zone)]
#: A text of several sentences.
LongText = Annotated[str, AfterValidator(partial(_check_text, most=2000))]


def _check_cost(value: str) -> str:
    try:
        return repr(cost_from_text(value))
    except InvalidCost as error:
        raise problem(*split_hint(error)) from None


#: What a step costs, as it is constructed; in one spelling.
CostText = Annotated[
    str, AfterValidator(_check_cost), WithJsonSchema({"type": "string", "minLength": 1})
]
#: Fractions of a budget, rising.
Alerts = Annotated[tuple[Alert, ...], AfterValidator(lambda x: tuple(sorted(set(x))))]
Unit = Annotated[Text, Field(title="Privacy unit")]
Relation = Annotated[
    Literal["add-or-remove", "replace-one"],
    Field(title="Neighbouring relation", examples=["add-or-remove"]),
]
