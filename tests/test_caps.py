"""Caps on what Prefect brings: in one place, and only as long as they are needed."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.projects import ROOT

#: The newest Prefect, in its first two numbers, that fails above the caps: its server
#: does not start under newer FastAPI, and its scheduler fails under newer SQLAlchemy.
FAILS = "3.8"
#: The first version above each cap. dpflow itself uses neither library.
CAPPED = {"fastapi": "0.151", "sqlalchemy": "2.1"}


def may_go(name: str, first: str, of_prefect: list[str], prefect: str) -> str:
    """Say why a cap may go; empty while it is needed."""
    its = [r for r in map(Requirement, of_prefect) if r.name.lower() == name]
    if not any(each.specifier.contains(first) for each in its):
        return f"Prefect {prefect} itself does not take {name} {first}: drop the cap"
    if Version(prefect).release[:2] > Version(FAILS).release[:2]:
        return (
            f"Prefect {prefect} was not tried with {name} {first}: install both, start "
            "`prefect server start` and run a scheduled deployment. If that works drop "
            "the cap, else set FAILS to this Prefect"
        )
    return ""


@pytest.mark.parametrize("name", CAPPED)
def test_a_cap_is_there_as_long_as_prefect_needs_it(name: str) -> None:
    """It fails, and says what to do, with the first Prefect that may do without."""
    assert (
        may_go(name, CAPPED[name], requires("prefect") or [], version("prefect")) == ""
    )


def test_what_lets_a_cap_go_is_noticed() -> None:
    """Prefect caps it itself, does not need it any more, or is newer."""
    told = may_go("fastapi", "0.151", ["fastapi>=0.111,<1"], "3.8.9")
    capped = may_go("fastapi", "0.151", ["fastapi<0.150"], "3.8.9")
    newer = may_go("sqlalchemy", "2.1", ["sqlalchemy[asyncio]>=2,<3"], "3.10.0")
    assert told == ""
    assert "itself does not take" in capped
    assert "was not tried" in newer
    assert "itself does not take" in may_go("fastapi", "0.151", [], "3.9.0")


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    caps = {Requirement(each).name: each for each in project["dependencies"]}
    for name, first in CAPPED.items():
        assert caps[name] == f"{name}<{first}"
