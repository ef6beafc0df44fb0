"""Costs as people write them on a command line: `Gaussian(sensitivity=1, sigma=20)`.

The text is read as data, never run: names of costs, numbers, texts, lists and maps are
all that it may hold. Numbers are read exactly as they are written.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.base import Cost, cost_from_description, cost_kind
from dpflow.exceptions import InvalidCost
from dpflow.interrupts import without_interrupts

_LONGEST = 20_000
_SHOWN = 80
_EXAMPLE = "Gaussian(sensitivity=1, sigma=20)"


def cost_from_text(text: str) -> Cost:
    """Read a cost.

    Args:
        text: Constructor call, `Laplace(sensitivity=1, scale=10)`, or the form of
            journals, `{"mechanism": "Laplace", ...}`.

    Raises:
        InvalidCost: If it is no cost, or one with a number that cannot be used.

    Examples:
        >>> cost_from_text("Repeated(PureDP(epsilon=0.1), 12)")
        Repeated(PureDP(epsilon=0.1), times=12)
    """
    if len(text) > _LONGEST:
        raise _no_cost(text, f"it has more than {_LONGEST} characters")
    if text.lstrip().startswith("{"):
        return _from_json(text)
    if "\0" in text:
        raise _no_cost(text, "it holds a null byte")
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body, text.strip())
    except without_interrupts(SyntaxError, RecursionError, MemoryError) as error:
        raise _no_cost(text, f"it cannot be read ({type(error).__name__})") from error
    if not isinstance(value, Cost):
        raise _no_cost(text, "it names no mechanism")
    return value


def python_form(description: Mapping[str, Any]) -> str:
    """Return a journal's cost as a constructor call.

    A cost that this version cannot read stays in the form of the journal.
    """
    try:
        return repr(cost_from_description(description))
    except InvalidCost:
        return json.dumps(dict(description))


def _from_json(text: str) -> Cost:
    try:
        data = json.loads(text)
    except without_interrupts(ValueError, RecursionError) as error:
        raise _no_cost(text, f"it is no JSON ({error})") from error
    return cost_from_description(data)


def _value(node: ast.expr, text: str) -> Any:
    """Return the value of a part of the text."""
    match node:
        case ast.Constant(value=float()):
            # As it is written: a float would round it.
            return ast.get_source_segment(text, node)
        case ast.Constant(value=bool() | int() | str() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return f"-{ast.get_source_segment(text, node.operand)}"
        case ast.BinOp(
            left=ast.Constant(value=int(above)),
            op=ast.Div(),
            right=ast.Constant(value=int(below)),
        ) if below:
            return Fraction(above, below)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [_value(part, text) for part in parts]
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {_value(k, text): _value(v, text) for k, v in pairs if k is not None}
        case ast.Call(func=ast.Name(id=name)):
            return _call(name, node, text)
    raise _no_cost(text, f"{ast.unparse(node)[:_SHOWN]!r} is no number, text or cost")


def _call(name: str, node: ast.Call, text: str) -> Cost:
    kind = cost_kind(name)
    if any(keyword.arg is None for keyword in node.keywords):
        raise _no_cost(text, "it holds **")
    places = [_value(part, text) for part in node.args]
    named = {str(part.arg): _value(part.value, text) for part in node.keywords}
    try:
        return kind(*places, **named)
    except InvalidCost:
        raise
    except without_interrupts(TypeError, ValueError, ArithmeticError) as error:
        raise _no_cost(text, str(error).rstrip(".")) from error


def _no_cost(text: str, why: str) -> InvalidCost:
    msg = f"{text[:_SHOWN]!r} is no cost: {why}. Write one such as {_EXAMPLE}."
    return InvalidCost(msg, name="cost", value=text[:_SHOWN])
