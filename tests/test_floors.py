"""Each requirement claims a lowest version, and `make floors` reports untested ones."""

import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement

from tests.floors import list_requirements, untested_floors
from tests.projects import ROOT

pytestmark = pytest.mark.quick


def test_each_requirement_claims_a_lowest_version():
    """One version: what has none resolves to a release of long ago."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    requirements = list_requirements(project)
    assert {"prefect", "pandas", "psycopg", "polars"} <= {r.name for r in requirements}
    for requirement in requirements:
        lowest = [s for s in requirement.specifier if s.operator in (">=", "==")]
        assert len(lowest) == 1, requirement
    assert set(project["project"]["optional-dependencies"]) == {
        *("opendp", "plots", "postgres", "examples")
    }


def test_a_version_that_no_test_saw_is_reported():
    """A floor that is not installed, a package that is missing, a missing floor."""
    texts = [f"numpy>={version('numpy')},<9", "nowhere>=1; python_version < '3'"]
    assert untested_floors(map(Requirement, texts)) == []
    wrong = ["numpy", "numpy>=0.1", "nowhere>=1"]
    assert len(untested_floors(map(Requirement, wrong))) == len(wrong)
