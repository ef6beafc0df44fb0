"""Ratchet of the project's size: `tests/size.toml` holds the counts of today."""

from __future__ import annotations

import ast
import fnmatch
import io
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

from tests.projects import ROOT

SIZES = tomllib.loads((ROOT / "tests" / "size.toml").read_text("utf-8"))
FUNCTIONS = {
    "functions *json": ["*json"],
    "functions of texts": ["*_text", "*_words", "*_lines", "*_sentence", "*told"],
}
NO_CODE = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return the number of lines without blanks, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(
            node, (ast.Module, ast.ClassDef, *FUNCTION)
        ) and ast.get_docstring(node):
            first = node.body[0]
            lines -= {*range(first.lineno, (first.end_lineno or 0) + 1)}
    return len(lines)


def text_lines(source: str) -> int:
    """Return the number of lines that are neither blank nor an SQL comment."""
    lines = (line.strip() for line in source.splitlines())
    return sum(bool(line) and not line.startswith("--") for line in lines)


def function_kinds(source: str) -> list[str]:
    """Return the kind of each function that a pattern of `FUNCTIONS` names."""
    names = [n.name for n in ast.walk(ast.parse(source)) if isinstance(n, FUNCTION)]
    return [
        kind
        for name in names
        for kind, patterns in FUNCTIONS.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]


def count_sizes(root: Path) -> Counter[str]:
    """Return the counts of a checkout: code lines, other files' lines, functions."""
    counts: Counter[str] = Counter()
    for path in sorted(p for top in SIZES["folders"] for p in (root / top).rglob("*")):
        place = path.relative_to(root)
        top, *_ = place.parts
        if not path.is_file() or path.suffix in {".pyc", ".typed"}:
            continue
        if path.suffix not in {".py", ".sql"}:
            if top == "dpflow":
                counts[f"dpflow, *{path.suffix}"] += text_lines(path.read_text("utf-8"))
            continue
        source = path.read_text("utf-8")
        lines = code_lines(source) if path.suffix == ".py" else text_lines(source)
        counts[SIZES["folders"][top]] += lines
        if top == "dpflow":
            package = "/".join(place.parts[:2])
            counts[package if package in SIZES["sizes"] else "dpflow (other)"] += lines
            counts.update(function_kinds(source) if path.suffix == ".py" else ())
    return counts


def exceeded(counts: Counter[str]) -> dict[str, str]:
    """Return the counts above `tests/size.toml`; what the file omits may not exist."""
    limits = SIZES["sizes"]
    return {
        name: f"{count} of {limits.get(name, 0)}"
        for name, count in counts.items()
        if count > limits.get(name, 0)
    }


def test_no_count_grows():
    """A commit may lower a count; a raised one has its reason in `tests/size.toml`."""
    assert exceeded(count_sizes(ROOT)) == {}


def test_growth_is_named(tmp_path):
    """A line, a stub, a template and a function too many are each counted."""
    limits = Counter(SIZES["sizes"])
    assert exceeded(limits) == {}
    source = (
        '"""Docstring."""\n\n# Comment.\ndef as_json():\n    """Doc."""\n    a_text()\n'
    )
    files = {
        "dpflow/ledger/added.py": f"{source}class C:\n    async def a_text(): ...\n",
        "dpflow/new/added.py": "x = 1\n",
        "dpflow/added.pyi": "x: int\n",
        "dpflow/added.yaml": "a: 1\n\nb: 2\n",
        "dpflow/added.sql": "-- Comment.\nSELECT 1;\n",
        "tests/test_added.py": "x = (\n    1\n)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    added = count_sizes(tmp_path)
    assert added == {
        "dpflow, all": 6,
        "dpflow/ledger": 4,
        "dpflow (other)": 2,
        "dpflow, *.pyi": 1,
        "dpflow, *.yaml": 2,
        "functions *json": 1,
        "functions of texts": 1,
        "tests, all": 3,
    }
    assert exceeded(limits + added).keys() == added.keys()
