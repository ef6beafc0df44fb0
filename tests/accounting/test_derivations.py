"""What is cited is here: every document, and every section of the derivations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dpflow.accounting import FILTERS, ODOMETERS
from tests.projects import ROOT

DERIVATIONS = ROOT / "docs" / "derivations"
PAGES = sorted(DERIVATIONS.glob("*.md"))
ROOT_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
TEXTS = {".py", ".md", ".sql", ".yaml", ".toml"}

DOCUMENT = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z0-9_]\.md\b")
CITATION = re.compile(r"\bderivations/([a-zA-Z-]+\.md)(?:#([a-z0-9-]*))?")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
#: Pages that the documentation's build makes, and the broken link of its test.
GENERATED = {
    "../reference/python.md", "reference/json.md", "reference/prices.md", "gone.md",
    "admitted.md", "../admitted.md", "benchmarks.md",
}  # fmt: skip


def texts() -> Iterator[tuple[str, str]]:
    """Yield the name and text of everything that may cite something."""
    folders = ("dpflow", "docs", "tests", "benchmarks", "flows", "policies")
    inside = [path for name in folders for path in sorted((ROOT / name).rglob("*"))]
    for path in [*inside, *ROOT_PAGES]:
        # This file is full of what it looks for.
        if path.suffix in TEXTS and path.is_file() and path != Path(__file__):
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def headings(page: Path) -> list[str]:
    """Return the anchors that a page's headings get."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r"[^a-z0-9 -]", "", t.lower()).replace(" ", "-") for t in titles]


ANCHORS = {page.name: headings(page) for page in PAGES}


def missing_documents(name: str, text: str) -> list[str]:
    """Return the documents that a text names and the repository does not have."""
    places = (ROOT, ROOT / "docs", ROOT / "docs" / "guides", (ROOT / name).parent)
    return [
        found
        for found in DOCUMENT.findall(text)
        if found not in GENERATED
        and not any((place / found).is_file() for place in places)
    ]


def test_every_document_that_is_named_is_in_the_repository():
    """No sentence names a file that is not there; the search sees links and paths."""
    lost = {name: missing_documents(name, text) for name, text in texts()}
    assert {name: found for name, found in lost.items() if found} == {}
    for text in ("see nowhere.md.", "(docs/nowhere.md 4.2)", "[x](no.md#a)"):
        assert missing_documents("docs/theorems.md", text)
    assert not missing_documents("docs/theorems.md", "see admitted.md and README.md")


def test_every_citation_of_a_derivation_leads_to_a_section():
    """A heading is renamed together with what cites it, or not at all."""
    cited = [
        (name, page, anchor)
        for name, text in texts()
        for page, anchor in CITATION.findall(text)
    ]
    assert len(cited) > 50
    lost = [
        place
        for place in cited
        if place[1] not in ANCHORS or (place[2] and place[2] not in ANCHORS[place[1]])
    ]
    assert lost == []


def test_links_and_tests_of_a_derivation_exist():
    """Anchors are unique, and each link leads to a heading of a file."""
    for page in PAGES:
        text = page.read_text("utf-8")
        assert len(set(ANCHORS[page.name])) == len(ANCHORS[page.name])
        for target, anchor in LINK.findall(text):
            place = (page.parent / target).resolve() if target else page
            assert place.is_file(), target
            assert not anchor or anchor in headings(place), f"{target}#{anchor}"
        for name in re.findall(r"\btests/[\w/]+\.py\b", text):
            assert (ROOT / name).is_file(), name


def test_every_theorem_is_derived():
    """The index names a page for each filter and odometer."""
    index = (DERIVATIONS / "README.md").read_text("utf-8")
    assert [name for name in (*FILTERS, *ODOMETERS) if f"`{name}`" not in index] == []
