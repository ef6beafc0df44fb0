"""What the documents show can be read: policies, code and YAML."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from dpflow.policy import parse_policy

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(language, text, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    for number, (language, text) in enumerate(_BLOCK.findall(path.read_text("utf-8")))
]


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_a_block_can_be_read(language: str, text: str) -> None:
    """A policy is a valid policy, Python is Python, YAML is YAML."""
    if language == "python":
        ast.parse(text)
    elif language == "yaml":
        data = yaml.safe_load(text)
        if {"dataset", "population"} & data.keys() and "budget" in data:
            parse_policy(text)
    else:
        assert language in {"toml", "sh", "sql", "text", "console"}


def test_the_documents_show_policies_and_code() -> None:
    """The pattern above finds them."""
    languages = [block.values[0] for block in BLOCKS]
    assert languages.count("yaml") >= 4
    assert languages.count("python") >= 4


def test_a_broken_policy_is_found() -> None:
    """The check can fail."""
    with pytest.raises(Exception, match="epsilon"):
        test_a_block_can_be_read("yaml", "dataset: a\nbudget: {epsilon: -1}\n")


_DEFINED = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def test_every_test_that_a_document_names_exists() -> None:
    """The table of failures is not a wish list; and one that is missing is found."""
    defined = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in _DEFINED.findall(file.read_text("utf-8"))
    }
    text = (ROOT / "docs" / "failures.md").read_text("utf-8")
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) > 50
    assert [name for name in named if name not in defined] == []
    assert "test_that_nobody_wrote" not in defined
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert all("`test_" in row for row in rows)
