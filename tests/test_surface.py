"""Surface: commands, options, policy fields, rules, keywords, settings, public names.

`tests/surface.txt` holds all of it; `python -m tests.test_surface` writes the file.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer

import dpflow
from dpflow.accounting import FILTERS, ODOMETERS
from dpflow.cli import app
from dpflow.config import SETTINGS
from dpflow.policy import policy_schema
from tests.projects import ROOT

FILE = ROOT / "tests" / "surface.txt"
MODULES = [
    *("accounting", "costs", "interop", "mechanisms", "people", "plots"),
    *("policy", "testing"),
]


def commands(command: Any, path: str = "") -> Iterator[str]:
    """Yield each command with its arguments and options."""
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, f"{path}{name} ")
            continue
        words = [word for item in each.params for word in item.opts]
        words += [word for item in each.params for word in item.secondary_opts]
        yield " ".join(["command", f"{path}{name}", *sorted(words)])


def fields(schema: dict[str, Any]) -> Iterator[str]:
    """Yield each field of each mapping in a policy."""
    for title, part in {"policy": schema, **schema.get("$defs", {})}.items():
        for name in part.get("properties", {}):
            yield f"field {title}.{name}"


def surface() -> list[str]:
    """Return a line for each part of the surface, sorted."""
    lines = [*commands(typer.main.get_command(app)), *fields(policy_schema())]
    lines += [f"setting {name}" for name in SETTINGS]
    lines += [f"filter {name}" for name in FILTERS]
    lines += [f"odometer {name}" for name in ODOMETERS]
    lines += [
        f"keyword {name}({word})"
        for name in dpflow.__all__
        if inspect.isfunction(value := getattr(dpflow, name))
        for word in inspect.signature(value).parameters
    ]
    lines += [
        f"name {module}.{name}"
        for module in ("dpflow", *(f"dpflow.{name}" for name in MODULES))
        for name in import_module(module).__all__
        if not name.startswith("__")
    ]
    return sorted(lines)


def test_the_surface_is_the_one_on_file():
    """A command, option, field, keyword, setting or name is added on purpose only."""
    assert surface() == FILE.read_text("utf-8").splitlines(), (
        "write the file anew, and read the difference: python -m tests.test_surface"
    )


def test_dir_shows_the_public_names():
    """And nothing else, before and after they are loaded."""
    assert len(set(dpflow.__all__)) == len(dpflow.__all__) == 42
    assert sorted(dpflow.__all__) == dir(dpflow)
    assert dpflow.Gaussian is dpflow.Gaussian
    assert sorted(dpflow.__all__) == dir(dpflow)


if __name__ == "__main__":
    FILE.write_text("\n".join(surface()) + "\n", "utf-8")
