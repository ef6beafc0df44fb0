"""Write the documentation as plain Markdown, with the pages that code says.

    python docs/_site/write.py [FOLDER]

The pages of docs/ are copied to FOLDER (default: build/docs). The README is the first
page, and the reference is added: the public names, the command line, the policy's
fields, and the source of each price. Any builder of sites can read the folder.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import promises
import seeds
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

#: Modules with public names: each has a page.
_MODULES = {
    "dpflow": "steps, policies, the usual costs",
    "dpflow.mechanisms": "mechanisms",
    "dpflow.costs": "further costs",
    "dpflow.accounting": "filters and odometers",
    "dpflow.interop": "other libraries",
    "dpflow.policy": "parts of policies",
    "dpflow.people": "budgets per person",
    "dpflow.plots": "pictures",
    "dpflow.testing": "tests of pipelines",
    "dpflow.exceptions": "errors",
}

#: Pages that a search shows after all others, or not at all.
_SEARCH = {
    "derivations/*.md": "exclude: true",
    "seeds.md": "boost: 0.3",
    "failures.md": "boost: 0.3",
    "campaign.md": "boost: 0.3",
    "decisions.md": "boost: 0.3",
}
_ALERT = re.compile(r"^> \[!(\w+)\]\n((?:> .*\n?)+)", re.MULTILINE)


def write(target: Path) -> None:
    """Write all pages into a folder, which is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(DOCS, target, ignore=shutil.ignore_patterns("_site", "data"))
    sources = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, target / "reference/source/dpflow", ignore=sources)
    pages = {
        "index": _of_root("README.md"),
        "contributing": _of_root("CONTRIBUTING.md"),
        "changelog": _of_root("CHANGELOG.md"),
        "seeds": seeds.page(seeds.rows()),
        "reference/python": _modules(),
        "reference/cli": _commands(),
        "reference/policy": _policy(policy_schema()),
        "reference/prices": prices_page(coverage()),
        "reference/json": _printed(),
    }
    pages |= {f"reference/{module}": _python(module) for module in _MODULES}
    for data in (DOCS / "data").glob("*.json"):
        pages[data.stem] = _tables(json.loads(data.read_text("utf-8")))
    for name, text in pages.items():
        (target / f"{name}.md").write_text(text, "utf-8")
    shutil.copy(DOCS.parent / "LICENSE", target)
    _change(target / "architecture.md", "<!-- packages -->", f"```text\n{figure()}```")
    failures = target / "failures.md"
    text = promises.with_tests(failures.read_text("utf-8"), promises.promises())
    failures.write_text(text, "utf-8")
    for page in target.rglob("*.md"):
        page.write_text(_ALERT.sub(_box, page.read_text("utf-8")), "utf-8")
    for pattern, search in _SEARCH.items():
        for page in target.glob(pattern):
            _change(page, "", f"---\nsearch:\n  {search}\n---\n\n")


def _change(page: Path, old: str, new: str) -> None:
    page.write_text(page.read_text("utf-8").replace(old, new, 1), "utf-8")


def _of_root(name: str) -> str:
    """Return a page of the repository's root, with its links as from docs/."""
    text = (DOCS.parent / name).read_text("utf-8")
    for old, new in {"CONTRIBUTING": "contributing", "CHANGELOG": "changelog"}.items():
        text = text.replace(f"]({old}.md)", f"]({new}.md)")
    return text.replace("](docs/", "](")


def _box(alert: re.Match[str]) -> str:
    """Return a box of the site for an alert, as hosts of repositories show it."""
    lines = [f"    {line.removeprefix('> ')}" for line in alert[2].splitlines()]
    return "\n".join([f"!!! {alert[1].lower()}", "", *lines, ""])


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


def _modules() -> str:
    """Return the page with the public names of all modules."""
    parts = ["# Python reference"]
    for module, title in _MODULES.items():
        parts.append(f"## [`{module}`]({module}.md): {title}")
        links = (f"[`{name}`]({module}.md#{module}.{name})" for name in _names(module))
        parts.append(", ".join(links) + ".")
    return "\n\n".join(parts) + "\n"


def _names(module: str) -> list[str]:
    """Return the public names of a module, sorted; of the errors all classes."""
    values = vars(import_module(module))
    if module == "dpflow.exceptions":
        return [name for name, value in values.items() if _is_error(value)]
    return sorted(name for name in values["__all__"] if not name.startswith("__"))


def _python(module: str) -> str:
    """Return the page of a module; names of `dpflow` stand in groups."""
    title, names = _MODULES[module], _names(module)
    parts = [f"# `{module}`: {title}"]
    groups: dict[str, Iterable[str]] = {"": names}
    if module == "dpflow":
        named = {name for group in _GROUPS.values() for name in group}
        others = [name for name in names if name not in named]
        costs = [name for name in others if name[0].isupper()]
        more = [name for name in others if name[0].islower()]
        groups = {**_GROUPS, "Costs": costs, "More": more}
    for heading, members in groups.items():
        parts += [f"## {heading}"] if heading else []
        parts += [section(module, name) for name in members]
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
            kind = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            meaning = field.get("description") or kind.get("description", "")
            meaning = " ".join(meaning.partition("\n\n")[0].split()).replace("|", r"\|")
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
    """Return a value as a policy has it."""
    if not isinstance(value, dict):
        return "" if value is None else f"`{value}`"
    given = {name: part for name, part in value.items() if part is not None}
    return "`{}`".format(json.dumps(given).replace('"', "")) if given else ""


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
