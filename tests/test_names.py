"""Ratchet of identifiers: names that no stranger knows, with the counts of today.

A name is that of a function, an argument, a local or an attribute that the package
defines, without underscores at its ends. `[names]` of `tests/size.toml` has the counts.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.projects import ROOT
from tests.tables import read_tables
from tests.test_size import exceeded

#: Lists of names; the YAML file says what each holds.
NAMES = read_tables(__file__)


@cache
def read_trees(root: Path) -> dict[Path, ast.Module]:
    """Return the syntax tree of each file of the package."""
    paths = (root / "dpflow").rglob("*.py")
    return {path: ast.parse(path.read_text("utf-8")) for path in paths}


def names_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each definition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(d) for d in node.decorator_list}
            is_attribute = decorators & {"property", "cached_property"}
            yield "attribute" if is_attribute else "function", node.name.strip("_")
        elif isinstance(node, ast.arg):
            yield "local", node.arg.strip("_")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield "local", node.id.strip("_")
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield "attribute", node.attr.strip("_")


def is_bare_participle(name: str) -> bool:
    """Return True if a function's name is a participle, alone or before a noun."""
    if name.startswith(("is_", "has_", "may_", "can_")) or name in NAMES["allowed"]:
        return False
    first = name.partition("_")[0]
    return first in NAMES["participles"] or (
        first.endswith("ed") and first not in ("need", "embed")
    )


def count_names(root: Path) -> Counter[str]:
    """Return how often the package defines each listed name."""
    counts: Counter[str] = Counter()
    for path, tree in read_trees(root).items():
        keys = NAMES["json_keys"].get(path.relative_to(root).as_posix(), ())
        for kind, name in names_of(tree):
            if kind != "function" and name in NAMES["empty"] and name not in keys:
                counts[name] += 1
            if kind == "function" and is_bare_participle(name):
                counts["participles"] += 1
        docstrings = (
            ast.get_docstring(node) or ""
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        )
        for text in docstrings:
            counts["Say whether"] += text.startswith("Say whether")
            counts["Of the ledger."] += text.count(": Of the ledger.")
    return counts


def test_no_count_of_a_name_grows():
    """A commit may lower a count of `[names]` only."""
    assert exceeded(count_names(ROOT), "names") == {}


def test_a_name_is_counted(tmp_path):
    """In each kind of definition, with its underscores."""
    (tmp_path / "dpflow").mkdir()
    source = (
        "class A:\n    @property\n    def facts(self): ...\n"
        "    def _made_parts(self, each):\n        '''Say whether.'''\n"
        "        self._place = rest = 1\n"
        "def is_kept(): ...\ndef need_it(): ...\ndef claimed(): ...\n"
    )
    (tmp_path / "dpflow" / "a.py").write_text(source, "utf-8")
    expected = {"facts": 1, "each": 1, "place": 1, "rest": 1, "participles": 1}
    assert +count_names(tmp_path) == {**expected, "Say whether": 1}


def test_no_two_classes_share_a_name():
    """A name in an error, a page or a search leads to one class."""
    nodes = (node for tree in read_trees(ROOT).values() for node in ast.walk(tree))
    names = Counter(n.name.strip("_") for n in nodes if isinstance(n, ast.ClassDef))
    assert {name: count for name, count in names.items() if count > 1} == {}
