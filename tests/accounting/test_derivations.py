"""What is cited is here: every document, and every section of the derivations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.accounting import FILTERS, ODOMETERS
from tests.projects import ROOT

DERIVATIONS = ROOT / "docs" / "derivations"
PAGES = sorted(DERIVATIONS.glob("*.md"))
ROOT_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
TEXTS = {".py", ".md", ".sql", ".yaml", ".toml"}

DOCUMENT = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z0-9_]\.md\b")
CITATION = re.compile(r"\bderivations/([a-zA-Z-]+\.md)(?:#([a-z0-9-]*))?")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
#: Labels such as E-3 or W-2, and sections of a file in capitals: only notes that are
#: not in the repository could explain them.


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
    """Nobody is sent to a file that they do not have."""
    lost = {name: missing_documents(name, text) for name, text in texts()}
    assert {name: found for name, found in lost.items() if found} == {}


def test_a_missing_document_would_be_found():
    """The search sees a name in a sentence, a path and a link."""
    for text in ("see nowhere.md.", "(docs/nowhere.md 4.2)", "[x](no.md#a)"):
        assert missing_documents("docs/theorems.md", text)
    assert not missing_documents("docs/theorems.md", "see theorems.md and README.md")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere_and_anchors_are_unique(page):
    """Each link of a page leads to a file and to a heading of it."""
    assert len(set(ANCHORS[page.name])) == len(ANCHORS[page.name])
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        place = (page.parent / target).resolve() if target else page
        assert place.is_file(), target
        assert not anchor or anchor in headings(place), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_derivation_names_exist(page):
    """What a section says that it is checked by is here."""
    for name in re.findall(r"\btests/[\w/]+\.py\b", page.read_text("utf-8")):
        assert (ROOT / name).is_file(), name


def test_every_theorem_is_derived():
    """The index names a page for each filter and odometer."""
    index = (DERIVATIONS / "README.md").read_text("utf-8")
    assert [name for name in (*FILTERS, *ODOMETERS) if f"`{name}`" not in index] == []
