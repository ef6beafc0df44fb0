"""Ratchet of sizes and words: `tests/size.toml` holds the counts of today."""

from __future__ import annotations

import ast
import fnmatch
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tests.projects import ROOT
from tests.tables import read_tables

SIZES = tomllib.loads((ROOT / "tests" / "size.toml").read_text("utf-8"))
FUNCTIONS = {
    "functions *json": ["*json"],
    "functions of texts": ["*_text", "*_words", "*_lines", "*_sentence", "*told"],
}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return the number of lines without blanks, comments and docstrings."""
    numbered = enumerate(map(str.strip, source.splitlines()), 1)
    lines = {number for number, line in numbered if line and line[0] != "#"}
    for node in _nodes(source):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
    for node in _nodes(source):
        documented = isinstance(node, (ast.Module, ast.ClassDef, *FUNCTION))
        if documented and ast.get_docstring(node, clean=False):
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


@lru_cache(maxsize=1)
def _nodes(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def text_lines(source: str) -> int:
    """Return the number of lines that are neither blank nor an SQL comment."""
    lines = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("--") for line in lines)


def function_kinds(source: str) -> list[str]:
    """Return the kind of each function that a pattern of `FUNCTIONS` names."""
    names = [n.name for n in _nodes(source) if isinstance(n, FUNCTION)]
    return [
        kind
        for name in names
        for kind, patterns in FUNCTIONS.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def count_sizes(root: Path) -> Counter[str]:
    """Return the counts of a checkout: code lines, other files' lines, functions."""
    counts: Counter[str] = Counter()
    for top, path in [(t, p) for t in SIZES["folders"] for p in (root / t).rglob("*")]:
        place = path.relative_to(root)
        if not path.is_file() or path.suffix in {".pyc", ".typed"}:
            continue
        if path.suffix not in {".py", ".sql"}:
            if top == "dpflow":
                counts[f"dpflow, *{path.suffix}"] += text_lines(path.read_text("utf-8"))
            continue
        source = path.read_text("utf-8")
        lines = code_lines(source) if path.suffix == ".py" else text_lines(source)
        counts[SIZES["folders"][top]] += lines
        if top in {"dpflow", "tests"}:
            package = "/".join(place.parts[:2])
            known = package in SIZES["sizes"]
            counts[package if known else f"{top} (other)"] += lines
        if top == "dpflow" and path.suffix == ".py":
            counts.update(function_kinds(source))
    return counts


def texts(root: Path) -> Iterator[str]:
    """Yield what people read: pages, and the docstrings and texts of the package."""
    for path in (*root.glob("*.md"), *(root / "docs").rglob("*.md")):
        if path.name not in SIZES["unread"]:
            yield path.read_text("utf-8")
    for path in (root / "dpflow").rglob("*.py"):
        for node in _nodes(path.read_text("utf-8")):
            value = getattr(node, "value", None)
            if isinstance(node, ast.Constant) and isinstance(value, str):
                yield value if " " in value else ""


def count_words(root: Path) -> Counter[str]:
    """Return how often each listed word stands outside code spans."""
    spans = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
    plain = (spans.sub(" ", text).lower().split() for text in texts(root))
    whole = "\n".join(map(" ".join, plain))
    return Counter({w: len(re.findall(rf"\b{w}\b", whole)) for w in SIZES["words"]})


def exceeded(counts: Counter[str], kind: str = "sizes") -> dict[str, str]:
    """Return the counts above `tests/size.toml`; what the file omits may not exist."""
    limits = SIZES[kind]
    return {
        name: f"{count} of {limits.get(name, 0)}"
        for name, count in counts.items()
        if count > limits.get(name, 0)
    }


def test_no_count_grows():
    """A commit may lower a count; a raised one has its reason in `tests/size.toml`."""
    assert exceeded(count_sizes(ROOT)) == {}
    assert exceeded(count_words(ROOT), "words") == {}
    assert [name for name in SIZES["absent"] if list(ROOT.glob(name))] == []


def test_growth_is_named(tmp_path):
    """A line, a stub, a template and a function too many are each counted."""
    limits, grown = Counter(SIZES["sizes"]), read_tables(__file__)
    assert exceeded(limits) == {}
    for name, text in grown["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    added = count_sizes(tmp_path)
    assert added == grown["sizes"]
    assert exceeded(limits + added).keys() == added.keys()
    words = +count_words(tmp_path)
    assert words == grown["words"]
    more = Counter(SIZES["words"]) + words
    assert exceeded(more, "words").keys() == words.keys()
