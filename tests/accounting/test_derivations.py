"""Pages name documents, sections, tests and theorems that exist, and true prices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs._site.prices import EXAMPLES, coverage, prices_page
from dpflow.accounting import FILTERS, ODOMETERS
from dpflow.accounting.costs.base import _KINDS
from tests.projects import ROOT
from tests.tables import read_tables

DERIVATIONS = ROOT / "docs" / "derivations"
PAGES = sorted(DERIVATIONS.glob("*.md"))
ROOT_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
TEXTS = {".py", ".md", ".sql", ".yaml", ".toml"}

CITATION = re.compile(r"\bderivations/([a-zA-Z-]+\.md)(?:#([a-z0-9-]*))?")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


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


@pytest.fixture(scope="module")
def rows():
    """Every row, made once."""
    return coverage()


def test_every_pair_has_one_row_with_a_reason(rows):
    """No theorem and no kind of cost is missing."""
    assert len(rows) == (len(FILTERS) + len(ODOMETERS)) * len(EXAMPLES)
    assert len({(r.kind, r.theorem, r.example) for r in rows}) == len(rows)
    kinds = {
        name for name, kind in _KINDS.items() if kind.__module__.startswith("dpflow.")
    }
    assert kinds == {cost.mechanism for cost in EXAMPLES}
    assert [row for row in rows if len(row.reason) < 10] == []


def test_traps_are_refused(rows):
    """No theorem prices what it cannot prove."""
    traps = read_tables(__file__)["refused"]
    for mechanism in ("ApproxDP", "ApproxZCDP"):
        traps += [["odometer", name, mechanism] for name in ODOMETERS]
    for trap in traps:
        matches = [r for r in rows if [r.kind, r.theorem, r.mechanism] == trap]
        assert [row.priced for row in matches] == [False]


def test_the_page_of_prices_is_what_the_code_does(rows):
    """Each cost has a section with the rules that price it, and with no other."""
    sections = prices_page(rows).split("\n## ")[1:]
    assert len(sections) == len(EXAMPLES)
    for cost, text in zip(EXAMPLES, sections, strict=True):
        example = repr(cost)
        for row in (row for row in rows if row.example == example):
            column = 1 if row.kind == "filter" else 2
            cells = [line.split("|")[column] for line in text.splitlines()[4:]]
            assert any(f"`{row.theorem}`" in cell for cell in cells) == row.priced
