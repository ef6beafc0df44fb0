"""Write the documentation as plain Markdown, with the pages that code says.

    python docs/_site/write.py [FOLDER]

The pages of docs/ are copied to FOLDER (default: build/docs) and the reference is
added: the public names, the command line, the policy's fields, and where each price
comes from. Any builder of sites can read the folder.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main
from names import section
from packages import PACKAGE, figure
from prices import coverage, prices_page
from typer.cli import get_docs_for_click

import dpflow
from dpflow.cli import app
from dpflow.forecast.what_if import Forecast
from dpflow.policy import policy_schema
from dpflow.show.history import History
from dpflow.show.status import Status
from dpflow.show.why import Why

DOCS = Path(__file__).parents[1]
TARGET = DOCS.parent / "build" / "docs"

#: The public names as a reader looks for them; the rest follows in their order.
_GROUPS = {
    "The guard": (
        "dp_task",
        "dp_flow",
        "private_task",
        "guarded",
        "spend",
        "release",
        "iterations",
    ),
    "Policies": ("Policy", "load_policy"),
    "Errors": ("DpflowError", "BudgetRefused", "BudgetExhausted", "DPStepFailed"),
}

#: Further modules with public names.
_MODULES = {
    "dpflow.mechanisms": "Mechanisms",
    "dpflow.costs": "Further costs",
    "dpflow.accounting": "Filters and odometers",
    "dpflow.interop": "Other libraries",
    "dpflow.policy": "Parts of policies",
    "dpflow.people": "Budgets per person",
    "dpflow.plots": "Pictures",
    "dpflow.testing": "Testing",
}


def write(target: Path) -> None:
    """Write all pages into a folder, which is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("_site", "data"))
    sources = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, target / "reference/source/dpflow", ignore=sources)
    pages = {
        "python": _python(),
        "cli": _commands(),
        "policy": _policy(policy_schema()),
        "prices": prices_page(coverage()),
        "json": _printed(),
    }
    for name, text in pages.items():
        (target / "reference" / f"{name}.md").write_text(text, "utf-8")
    architecture = target / "architecture.md"
    text = architecture.read_text("utf-8")
    text = text.replace("<!-- packages -->", f"```text\n{figure()}```")
    architecture.write_text(text, "utf-8")
    for data in (DOCS / "data").glob("*.json"):
        page = json.loads(data.read_text("utf-8"))
        (target / f"{data.stem}.md").write_text(_tables(page), "utf-8")


def _tables(page: dict[str, Any]) -> str:
    """Return a page of figures: sections with paragraphs and a table."""
    parts = [f"# {page['title']}"]
    for part in page["sections"]:
        parts += [f"## {part['title']}"] if "title" in part else []
        parts += part.get("text", [])
        if columns := part.get("columns"):
            rows = [columns, ["---"] * len(columns), *part["rows"]]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts) + "\n"


def _commands() -> str:
    """Return the page of the command line, from what `--help` says."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="dpflow")
    text = get_docs_for_click(obj=command, ctx=context, name="dpflow")
    return text.replace("# `dpflow`", "# Command line", 1)


def _python() -> str:
    """Return the page of the public names: groups, then costs and the rest."""
    names = sorted(name for name in dpflow.__all__ if not name.startswith("__"))
    named = {name for group in _GROUPS.values() for name in group}
    groups = _GROUPS | {
        "Costs": tuple(n for n in names if n not in named and n[0].isupper()),
        "More": tuple(n for n in names if n not in named and n[0].islower()),
    }
    said = "What names no other place is imported from `dpflow`."
    parts = ["# Python reference", said]
    for title, members in groups.items():
        parts += [f"## {title}"] if members else []
        parts += [section("dpflow", name) for name in members]
    for module, title in _MODULES.items():
        parts += [f"## {title}", f"Imported from `{module}`."]
        parts += [section(module, name) for name in import_module(module).__all__]
    errors = vars(import_module("dpflow.exceptions"))
    kinds = [n for n, each in errors.items() if _is_error(each) and n not in named]
    parts += ["## All errors", "Imported from `dpflow.exceptions`."]
    parts += [section("dpflow.exceptions", name) for name in kinds]
    return "\n\n".join(parts) + "\n"


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, dpflow.DpflowError)


def _policy(schema: dict[str, Any]) -> str:
    """Return the page of the policy's fields, from the schema that editors use."""
    lines = [
        "# Policy fields",
        "",
        (
            "From `policies/policy.schema.json`, which editors read for completion. "
            "`dpflow policy schema` prints it, `dpflow policy check` explains a policy."
        ),
        "",
    ]
    for title, model in _models(schema):
        lines += [f"## {title}", "", model.get("description", ""), ""]
        lines += [
            "| field | meaning | default | examples |",
            "| --- | --- | --- | --- |",
        ]
        required = model.get("required", [])
        for name, field in model["properties"].items():
            default = "required" if name in required else _code(field.get("default"))
            examples = ", ".join(_code(each) for each in field.get("examples", []))
            meaning = re.sub(r"\s+", " ", field.get("description", ""))
            meaning = meaning.replace("|", r"\|")
            lines.append(f"| `{name}` | {meaning} | {default} | {examples} |")
        lines.append("")
    return "\n".join(lines)


def _printed() -> str:
    """Return the page of the records that commands print for programs."""
    lines = ["# JSON of the commands", ""]
    lines += [
        (
            "`--json` prints the record of the command: an object of its fields. Exact "
            "numbers are decimal texts, undefined floats are null, times are ISO 8601 "
            "in UTC."
        ),
        "",
    ]
    records: list[Any] = [Status, History, Why, Forecast]
    for record in records:
        about, _, fields = inspect.cleandoc(record.__doc__).partition("Attributes:\n")
        meanings = dict(
            re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", fields, re.MULTILINE)
        )
        lines += [f"## {record.__name__}", "", about.partition("\n")[0], ""]
        lines += ["| field | type | meaning |", "| --- | --- | --- |"]
        for field in dataclasses.fields(record):
            if field.repr:
                meaning = " ".join(meanings.get(field.name, "").split())
                kind = str(field.type).replace("|", "or")
                lines.append(f"| `{field.name}` | `{kind}` | {meaning} |")
                parts = (
                    getattr(sys.modules[record.__module__], name, None)
                    for name in re.findall(r"[A-Z]\w+", kind)
                )
                records += [
                    part
                    for part in parts
                    if dataclasses.is_dataclass(part) and part not in records
                ]
        lines.append("")
    return "\n".join(lines)


def _models(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of the schema that has fields, the policy first."""
    yield "The policy", schema
    for name, model in schema.get("$defs", {}).items():
        if "properties" in model:
            yield name, model


def _code(value: Any) -> str:
    return "" if value is None else f"`{value}`"


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
