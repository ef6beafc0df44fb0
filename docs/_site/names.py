"""A public name as Markdown: its signature, and its docstring section by section."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
from packages import PACKAGE

# Arguments of the constructors of dataclasses are documented as attributes.
logging.getLogger("griffe").setLevel(logging.ERROR)
Kind = griffe.DocstringSectionKind
_TITLES = {
    Kind.parameters: "Arguments",
    Kind.attributes: "Attributes",
    Kind.returns: "Returns",
    Kind.yields: "Yields",
    Kind.raises: "Raises",
}


def section(module: str, name: str) -> str:
    """Return the Markdown of a public name of a module, under a heading of its own."""
    value = getattr(import_module(module), name)
    found = _source(module, value, name)
    # The folder is below the pages of the reference.
    file = Path(found.filepath).relative_to(PACKAGE.parent)
    source = f"[Source](source/{file}), line {found.lineno}."
    parts = [f'### <a id="{module}.{name}"></a>{name}', source]
    if isinstance(found, griffe.Class | griffe.Function):
        parts.append(f"```python\n{_signature(value, found, name)}\n```")
    docstring = found.docstring
    parsed = [] if docstring is None else docstring.parse("google")
    return "\n\n".join([*parts, *map(_part, parsed)])


@cache
def _package() -> Any:
    return griffe.load("dpflow", docstring_parser="google")


def _source(module: str, value: Any, name: str) -> Any:
    """Return where a name is defined, as read from the source."""
    # A mapping knows no module of its own.
    module = getattr(value, "__module__", module)
    place = f"{module}.{getattr(value, '__qualname__', name)}"
    return _package()[place.removeprefix("dpflow.")]


def _signature(value: Any, found: Any, name: str) -> str:
    """Return how it is called, a line for each argument where one is too short."""
    if isinstance(found, griffe.Class):
        if "__init__" not in found.members:
            return f"class {name}"
        # It may be the constructor of a base.
        init = value.__init__
        owner = f"{init.__module__}.{init.__qualname__}".removesuffix(".__init__")
        found = _package()[owner.removeprefix("dpflow.")]
    line = str(found.signature(name=name))
    if hasattr(value, "__wrapped__"):
        # The running step gives its cost.
        line = re.sub(r"\(cost: \w+, ", "(", line)
    if len(line) <= 88:  # noqa: PLR2004
        return line
    code = ast.parse(f"def {line}: ...").body[0]
    assert isinstance(code, ast.FunctionDef)
    return _broken(code)


def _broken(code: ast.FunctionDef) -> str:
    """Return a signature with a line for each argument."""
    given = code.args
    code.args = ast.arguments([], [], None, [], [], None, [])
    end = ast.unparse(code).partition("()")[2].removesuffix(":\n    ...")
    kept = [ast.unparse(each) for each in _one_by_one(given)]
    lines = "".join(f"    {text},\n" for text in kept)
    return f"{code.name}(\n{lines}){end}"


def _one_by_one(given: ast.arguments) -> Iterator[ast.arguments]:
    """Yield the arguments of a function, each as if it were the only one."""
    plain = [*given.posonlyargs, *given.args]
    missing = [None] * (len(plain) - len(given.defaults))
    for each, default in zip(plain, [*missing, *given.defaults], strict=True):
        yield _arguments(args=[each], defaults=[default] if default else [])
    if given.vararg or given.kwonlyargs:
        yield _arguments(vararg=given.vararg or ast.arg(""))
    for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield _arguments(args=[each], defaults=[default] if default else [])
    if given.kwarg:
        yield _arguments(kwarg=given.kwarg)


def _arguments(**parts: Any) -> ast.arguments:
    return ast.arguments(
        **{
            "posonlyargs": [],
            "args": [],
            "kwonlyargs": [],
            "kw_defaults": [],
            "defaults": [],
            **parts,
        }
    )


def _part(part: Any) -> str:
    """Return one section of a docstring."""
    if part.kind is Kind.text:
        return str(part.value)
    if part.kind is Kind.examples:
        return "\n\n".join(
            f"```python\n{text}\n```" if kind is Kind.examples else str(text)
            for kind, text in part.value
        )
    if part.kind is Kind.admonition:
        return f"**{part.title or part.value.annotation}:** {part.value.description}"
    items = "\n".join(f"- {_item(each)}" for each in part.value)
    return f"**{_TITLES[part.kind]}:**\n\n{items}"


def _item(each: Any) -> str:
    """Return one argument, attribute, result or error."""
    label = getattr(each, "name", "") or getattr(each, "annotation", "")
    text = str(each.description).replace("\n", "\n  ")
    return f"`{label}`: {text}" if label else text
