"""What `make quick` runs is there, and looks into every room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dpflow
from tests.projects import ROOT

LIST = (ROOT / "tests" / "quick.txt").read_text("utf-8").split()


def files(places: list[str]) -> Iterator[Path]:
    """Yield the test files of a list of files and folders."""
    for place in places:
        path = ROOT / place
        yield from sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def rooms() -> set[str]:
    """Return the folders of the package, those within others as well."""
    found = (path.parent.relative_to(ROOT) for path in ROOT.glob("dpflow/*/**/*.py"))
    return {".".join(folder.parts) for folder in found}


def looked_into(path: Path) -> Iterator[str]:
    """Yield what a test file imports of the package, and the room that it mirrors."""
    yield ".".join(("dpflow", *path.parent.relative_to(ROOT / "tests").parts))
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "dpflow":
            known = dpflow._PLACES
            names = [known.get(n.name, f"dpflow.{n.name}") for n in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from names


def unseen(places: list[str]) -> set[str]:
    """Return the rooms that these tests neither mirror nor import anything of."""
    seen = [f"{name}." for path in files(places) for name in looked_into(path)]
    return {room for room in rooms() if not any(n.startswith(f"{room}.") for n in seen)}


def test_what_is_listed_is_there_once():
    """A file that moves takes its line along."""
    assert [place for place in LIST if not (ROOT / place).exists()] == []
    assert len(set(files(LIST))) == len(list(files(LIST)))


def test_every_room_is_looked_into():
    """Whoever adds a room adds tests of it that take little time."""
    assert unseen(LIST) == set()


def test_a_room_that_nobody_looks_into_would_be_found():
    """The test above can fail."""
    assert "dpflow.people" in unseen(["tests/test_config.py"])
