"""Caps on what Prefect brings: in one place, and only as long as they are needed."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.projects import ROOT

#: A Prefect that needs the caps: its server does not start under newer FastAPI, and its
#: scheduler fails under newer SQLAlchemy. 3.9 caps FastAPI itself, and its servers and
#: schedules work under SQLAlchemy 2.1: `tests/prefect` passes without the caps.
NEEDS = Version("3.8.8")
#: The first version above each cap. dpflow itself uses neither library.
CAPPED = {"fastapi": "0.151", "sqlalchemy": "2.1"}


def are_needed(prefect: str) -> bool:
    """Say whether a requirement admits a Prefect that needs the caps."""
    return Requirement(prefect).specifier.contains(NEEDS)


def dependencies() -> dict[str, str]:
    """Return what pyproject.toml asks for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {Requirement(each).name: each for each in project["dependencies"]}


def test_the_caps_go_with_the_last_prefect_that_needs_them() -> None:
    """Who raises the floor under Prefect takes them away."""
    assert are_needed(dependencies()["prefect"]), "drop the caps"
    assert not are_needed("prefect>=3.9,<4")


@pytest.mark.parametrize("name", CAPPED)
def test_the_installed_prefect_works_under_the_caps(name: str) -> None:
    """A Prefect that asks for more would be passed over for an older one."""
    asked = [r for r in map(Requirement, requires("prefect") or []) if r.name == name]
    assert asked
    assert all(each.specifier.contains(version(name)) for each in asked)


def test_the_caps_stand_in_one_place() -> None:
    """In pyproject.toml, once; every other file installs what is said there."""
    pattern = r"(fastapi|sqlalchemy)(\[\w+\])?[^\S\n]*(<|==|~=)[^\S\n]*[0-9]"
    files = [ROOT / "pyproject.toml", ROOT / "Makefile", ROOT / "README.md"]
    written = {".md", ".toml", ".yaml", ".json", ".py", ""}
    files += [path for path in (ROOT / "docs").rglob("*") if path.suffix in written]
    places = [
        path.name
        for path in files
        if path.is_file()
        for _ in re.finditer(pattern, path.read_text("utf-8"), re.IGNORECASE)
    ]
    assert places == ["pyproject.toml"] * len(CAPPED)
    for name, first in CAPPED.items():
        assert dependencies()[name] == f"{name}<{first}"
