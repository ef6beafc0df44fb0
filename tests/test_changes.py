"""The table "Where to change what" of docs/architecture.md agrees with the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.projects import ROOT
from tests.tables import read_tables
from tests.test_architecture import (
    PACKAGE,
    _modules_imported,
    module_name,
    nodes,
    sources,
)

pytestmark = pytest.mark.quick

PAGE = ROOT / "docs" / "architecture.md"
_PLACE = re.compile(r"`([\w/]+\.\w+)`(?: \(((?:`\w+`(?:, )?)+)\))?")


def changes(page: str) -> dict[str, dict[str, list[str]]]:
    """Return the files of each change in the page's table, with the names in them."""
    table = page.partition("| change | files |\n|---|---|\n")[2].partition("\n\n")[0]
    rows = (line.strip("| ").partition(" | ") for line in table.splitlines())
    return {
        change: {
            path: re.findall(r"\w+", names) for path, names in _PLACE.findall(text)
        }
        for change, _, text in rows
    }


def defined(path: Path) -> set[str]:
    """Return the functions, classes and constants of a file."""
    tree = nodes(path.read_text("utf-8"))
    targets = [t for n in tree if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in tree if isinstance(n, ast.AnnAssign)]
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = {getattr(target, "id", "") for target in targets}
    return names | {node.name for node in tree if isinstance(node, kinds)}


@cache
def import_graph() -> dict[str, set[str]]:
    """Return what each module imports."""
    return {m: set(_modules_imported(s, sources())) for m, s in sources().items()}


def wrong_changes(rows: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return what the code does not confirm: files, names, and links by imports."""
    graph, wrong = import_graph(), []
    for change, files in rows.items():
        missing = [path for path in files if not (PACKAGE / path).is_file()]
        python = [p for p in files if p.endswith(".py") and p not in missing]
        wrong += [f"{change}: no file {path}" for path in missing]
        wrong += [
            f"{change}: no {name} in {path}"
            for path in python
            for name in {*files[path]} - defined(PACKAGE / path)
        ]
        if not 1 <= len(files) <= 4:
            wrong.append(f"{change}: {len(files)} files")
        first = module_name(PACKAGE / python[0]) if python else ""
        wrong += [
            f"{change}: no import path between {first} and {path}"
            for path in python
            if not files[path]
            and first not in reachable(graph, module_name(PACKAGE / path))
            and module_name(PACKAGE / path) not in reachable(graph, first)
        ]
    return wrong


def reachable(graph: dict[str, set[str]], module: str) -> set[str]:
    """Return the modules that a module imports, directly or by others."""
    result, rest = set(), [module]
    while rest:
        if (name := rest.pop()) not in result:
            result.add(name)
            rest += graph.get(name, ())
    return result


def test_the_table_of_changes_agrees_with_the_code():
    """Thirty changes: at most four files each, which exist and import each other."""
    rows = changes(PAGE.read_text("utf-8"))
    assert len(rows) == 30
    assert wrong_changes(rows) == []
    for files in read_tables(__file__)["wrong"]:
        assert wrong_changes({"a change": files})
