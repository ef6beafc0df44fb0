"""Compare the lowest versions that pyproject.toml claims with the installed ones.

    python -m tests.floors

`make floors` runs it: a claimed version that no test saw is reported.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import chain

from packaging.requirements import Requirement
from packaging.version import Version

from tests.projects import ROOT


def list_requirements(project: Mapping[str, dict]) -> list[Requirement]:
    """Return the direct requirements: of the package, its extras and the tests."""
    metadata, groups = project["project"], project["dependency-groups"]
    extras = metadata["optional-dependencies"].values()
    texts = chain(metadata["dependencies"], *extras, groups["docs"], groups["dev"])
    requirements = [Requirement(text) for text in texts if isinstance(text, str)]
    return [r for r in requirements if r.name != metadata["name"]]


def untested_floors(requirements: Iterable[Requirement]) -> list[str]:
    """Return the requirements whose lowest version is not the installed one."""
    wrong = []
    for requirement in requirements:
        if requirement.marker and not requirement.marker.evaluate():
            continue
        claims = (s for s in requirement.specifier if s.operator in (">=", "=="))
        lowest = [claim.version for claim in claims]
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            installed = "0"
        is_tested = [Version(low) == Version(installed) for low in lowest] == [True]
        if not is_tested:
            wrong.append(f"{requirement}: {installed} is installed")
    return wrong


def main() -> int:
    """Print the claimed versions that are not installed, and return 1 if there are."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wrong = untested_floors(list_requirements(project))
    print(*wrong, sep="\n")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
