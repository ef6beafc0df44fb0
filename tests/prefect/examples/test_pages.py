"""What the quickstart and the guides say is what happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pages import blocks, run_page
from tests.postgres import binaries
from tests.projects import ROOT

DOCS = ROOT / "docs"
#: Proofs, the tutorial, and what is made of docstrings have tests of their own.
ELSEWHERE = {"derivations", "reference", "tutorial"}
TUTORIAL = sorted((DOCS / "tutorial").glob("*.md"))


def to_be_run(page: Path) -> bool:
    """Say whether a page has a command or a program."""
    return any(
        block.language == "python" or "$ " in block.text
        for block in blocks(page.read_text("utf-8"))
        if block.language in {"python", "console"} and block.name is None
    )


#: Pages that each push runs.
AT_EACH_PUSH = {"quickstart", "concepts", "architecture"}
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if page.relative_to(DOCS).parts[0] not in ELSEWHERE and to_be_run(page)
]


def test_the_pages_are_found() -> None:
    """The main pages are among them; each console block begins with a command."""
    names = {str(page.relative_to(DOCS)) for page in PAGES}
    assert {
        "quickstart.md",
        "architecture.md",
        "budget-over-time.md",
        "guides/libraries.md",
    } <= names
    consoles = [
        (page.name, block.text)
        for page in DOCS.rglob("*.md")
        for block in blocks(page.read_text("utf-8"))
        if block.language == "console" and not block.text.startswith("$ ")
    ]
    assert consoles == []


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=() if p.stem in AT_EACH_PUSH else pytest.mark.slow)
        for p in PAGES
    ],
    ids=[page.stem for page in PAGES],
)
def test_a_page_is_true(
    page: Path, tmp_path: Path, forked: dict[str, str], request: pytest.FixtureRequest
) -> None:
    """Its files are written, its commands run, and they print what it shows."""
    text = page.read_text("utf-8")
    world = dict(forked)
    if "$OWNER_URL" in text:
        owner = request.getfixturevalue("postgres_url")
        world["OWNER_URL"] = owner
        world["WORKER_URL"] = owner.replace("//postgres@", "//orders_worker@")
        world["PATH"] = f"{os.environ['PATH']}:{binaries()}"
    assert run_page(text, tmp_path, **world) > 0


def test_the_tutorial_is_true(tmp_path: Path, forked: dict[str, str]) -> None:
    """Its pages are done one after the other, in one folder."""
    assert [page.name[0] for page in TUTORIAL] == [*"123456"]
    text = "\n".join(page.read_text("utf-8") for page in TUTORIAL)
    assert run_page(text, tmp_path, **forked) > len(TUTORIAL)


def test_a_page_is_run_as_it_says(tmp_path: Path) -> None:
    """A named block is a file, and dots stand for anything; four lies are caught."""
    page = (
        "Write `a/hello.py`:\n\n```python\nprint('one', 2, 'three')\n```\n\n"
        "```console\n$ python a/hello.py\none ... three\n"
        "$ test -f b  # exit code 1\n```\n"
    )
    assert [block.name for block in blocks(page)] == ["a/hello.py", None]
    assert run_page(page, tmp_path) == 2
    for number, lie in enumerate(
        [
            "```console\n$ echo one\ntwo\n```",
            "```console\n$ false\n```",
            "```console\n$ true  # exit code 1\n```",
            "```python\nassert False\n```",
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(AssertionError):
            run_page(f"A page.\n\n{lie}\n", folder)
