"""Every numbered statement of the five papers has a test or a reason why not."""

from __future__ import annotations

import re
from itertools import chain
from runpy import run_path

import pytest

from tests.projects import ROOT

SCRIPT = run_path(str(ROOT / "docs" / "_site" / "seeds.py"))
ROWS = SCRIPT["rows"]()
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(
        r"^(?:async )?def (test_\w+)\(", path.read_text("utf-8"), re.MULTILINE
    )
}
#: How many statements and experiments each paper numbers, counted on its pages.
NUMBERED = {"Rogers": 32, "Whitehouse": 9, "Feldman": 8, "Hartmann": 42, "Lécuyer": 13}


def wrong(row: dict[str, str]) -> str:
    """Return what a row lacks, or nothing."""
    if not row.get("says"):
        return "it does not say what the statement says"
    if "why" in row:
        alone = len(row["why"].split()) > 3 and not {"file", "test"} & row.keys()
        return "" if alone else "a reason stands alone, and is a sentence"
    if not (ROOT / row.get("file", "?")).exists():
        return "its file does not exist"
    return "" if row.get("test") in TESTS else "its test does not exist"


def test_every_row_has_a_test_or_a_reason():
    """Files and tests that are named exist; no numbered statement is left out."""
    rows = ((p, name, row) for p in ROWS for name, row in ROWS[p].items())
    faults = {(p, name): text for p, name, row in rows if (text := wrong(row))}
    assert faults == {}
    counts = {re.split("[, ]", paper)[0]: len(ROWS[paper]) for paper in ROWS}
    assert counts == NUMBERED


def test_every_experiment_says_how_it_is_reproduced():
    """In one of three ways, followed by what differs."""
    ways = re.compile(r"exactly|in size|on other data")
    for paper, rows in ROWS.items():
        for name, row in rows.items():
            way = row.get("reproduced", "")
            assert bool(ways.match(way)) == bool(way), (paper, name)
            assert way or not re.match("Figure|Table|Section 5.3", name), (paper, name)


@pytest.mark.parametrize(
    "change",
    [{"says": ""}, {"why": "no"}, {"file": "nowhere.py"}, {"test": "test_absent"}],
)
def test_a_row_that_shows_nothing_is_found(change):
    """The checks can fail."""
    row = {"says": "It holds.", "file": "dpflow/plots.py", "test": min(TESTS)}
    assert not wrong(row)
    assert wrong({**row, **change})


def test_the_page_has_every_row():
    """Each with its file and test, or with its reason."""
    page = SCRIPT["page"](ROWS)
    for row in chain.from_iterable(rows.values() for rows in ROWS.values()):
        assert row.get("why", row.get("test")) in page
    assert page.count("\n| ") == sum(map(len, ROWS.values())) + 2 * len(ROWS)
