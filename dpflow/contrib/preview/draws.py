"""Whether a step's body draws the noise that its cost declares, as its source tells."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping

from dpflow.accounting.costs.base import cost_kind
from dpflow.exceptions import InvalidCost
from dpflow.noise.draws import sampler_for

_RELEASE = "release"
#: What takes the one draw that a cost pays for.
_DRAW = {
    _RELEASE,
    "gradient_descent",
    "interquartile_range",
    "iterations",
    "output_perturbation",
    "sparse_vector",
}
_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.With, ast.AsyncWith)


def drawn_by_release(cost: ast.expr, foreign: Container[str]) -> bool:
    """Say whether a cost is one whose noise `release` would draw.

    Args:
        cost: As it is written, with its names resolved.
        foreign: Names that are bound to something that is not dpflow's.
    """
    if not isinstance(cost, ast.Call) or not isinstance(cost.func, ast.Name):
        return False
    if cost.func.id in foreign:
        return False
    try:
        kind = cost_kind(cost.func.id)
    except InvalidCost:
        return False
    return sampler_for.dispatch(kind) is not sampler_for.dispatch(object)


def draws(
    body: ast.AST, functions: Mapping[str, ast.AST], aliases: Mapping[str, str]
) -> bool:
    """Say whether a body draws, itself or in a function of its file that it names.

    Args:
        body: A function, a lambda or a block.
        functions: Those of the file, by name.
        aliases: What imported names are called where they come from.
    """
    waiting, seen = [body], {id(body)}
    while waiting:
        names = set(_names(waiting.pop()))
        if any(aliases.get(name, name) in _DRAW for name in names - functions.keys()):
            return True
        for name in names & functions.keys():
            if id(functions[name]) not in seen:
                seen.add(id(functions[name]))
                waiting.append(functions[name])
    return False


def _names(body: ast.AST) -> Iterator[str]:
    """Yield the names that a body uses, and the attributes."""
    parts = list(_inside(body))
    # A lock is released so; a value never is.
    without_value = {
        id(part.func)
        for part in parts
        if isinstance(part, ast.Call) and not (part.args or part.keywords)
    }
    for part in parts:
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute) and id(part) not in without_value:
            yield part.attr


def _inside(body: ast.AST) -> Iterator[ast.AST]:
    """Yield what is run when a body runs: not its decorators, nor a block's head."""
    run: Iterable[ast.AST] = (body,)
    if isinstance(body, _BLOCKS):
        run = body.body
    for part in run:
        yield from ast.walk(part)
