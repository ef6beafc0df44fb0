"""Tests of each promise, from the marker `promise` in the tests.

    python docs/_site/promises.py [PROMISE ...]

A page names a promise as `{name}`; the site has the names of its tests in that place.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"
PLACEHOLDER = re.compile(r"\{([a-z0-9-]+)\}")


def promises(folder: Path = TESTS) -> dict[str, list[str]]:
    """Return the names of the tests of each promise, sorted."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for name in _marked(node.decorator_list):
                    found.setdefault(name, []).append(node.name)
    return {name: sorted({*tests}) for name, tests in sorted(found.items())}


def _marked(decorators: list[ast.expr]) -> Iterator[str]:
    """Yield the promises that the decorators of a test name."""
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == (
            "pytest.mark.promise"
        ):
            yield from (ast.literal_eval(argument) for argument in decorator.args)


def with_tests(page: str, tests: dict[str, list[str]]) -> str:
    """Return a page with the names of tests in the place of each promise."""

    def names(match: re.Match[str]) -> str:
        return ", ".join(f"`{test}`" for test in tests[match[1]])

    return PLACEHOLDER.sub(names, page)


if __name__ == "__main__":
    for promise, names in promises().items():
        if promise in sys.argv[1:] or not sys.argv[1:]:
            sys.stdout.write(f"{promise}: {', '.join(names)}\n")
