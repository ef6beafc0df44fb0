"""Every numbered statement of the five papers has a test or a reason why not."""

from __future__ import annotations

import re
from itertools import chain
from runpy import run_path

from tests.projects import ROOT

SCRIPT = run_path(str(ROOT / "docs" / "_site" / "seeds.py"))
ROWS = SCRIPT["rows"]()


def numbered(kind: str, *numbers: object) -> list[str]:
    """Return the names of statements of one kind."""
    return [f"{kind} {number}" for number in numbers]


#: What the papers number, read off their pages.
NUMBERED = {
    "Rogers": [
        *numbered("Definition", 2.1, 2.2, 2.4, 2.6, 2.8, 3.1, 3.2),
        *numbered("Lemma", 2.3, 3.4, 3.5, 4.1, 4.2, 4.4, 6.2, 6.3, 6.4),
        *numbered("Theorem", 2.5, 2.7, 2.9, "2.10", 3.6, 4.3, 5.1, 6.1, 6.5),
        *numbered("Algorithm", 1, 2, 3, 4, 5),
        "Proposition 3.3",
    ],
    "Whitehouse": [
        *("Conditional pDP", "Conditional DP", "Filters", "Odometers"),
        *("Filter Theorem", "Fully Adaptive Theorem", "Stitched Odometer"),
        *("Conjugate Mixture Odometer", "Figure: odometer comparison"),
    ],
    "Feldman": [
        *numbered("Definition", 1.1, 1.2),
        *numbered("Theorem", 2.1, 2.2),
        *numbered("Algorithm", 1, 2),
        *("Corollary 2.3", "Table: accuracies"),
    ],
    "Hartmann": [
        *numbered("Definition", 1, 2, 5, 9, 19),
        *numbered("Lemma", 3, 4, 6, 8, 10, 11, 12, 13, 14, 20, 21),
        *numbered("Theorem", 7, 15, 16, 17),
        *numbered("Algorithm", 1, 2, 3, 4, 5, 6),
        *("Corollary 18", "Figure 1", "Figure 2", "Table 1"),
    ],
    "Lécuyer": [
        *numbered("Theorem", 1, 2),
        *numbered("Corollary", 1, 2),
        *numbered("Algorithm", 1, 2),
        *("Figure 1 (a, b, c)", "Figure 1 (d)", "Figure 2"),
    ],
}
_DEFINED = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)


def wrong(row: dict[str, str]) -> str:
    """Return what a row lacks, or nothing."""
    if not row.get("says"):
        return "it does not say what the statement says"
    if "why" in row:
        alone = len(row["why"].split()) > 3 and not {"file", "test"} & row.keys()
        return "" if alone else "a reason stands alone, and is a sentence"
    if not (ROOT / row.get("file", "?")).exists():
        return "its file does not exist"
    path, _, test = row.get("test", "").partition("::")
    file = ROOT / path
    if not file.is_file() or test not in _DEFINED.findall(file.read_text("utf-8")):
        return "its test does not exist"
    return ""


def test_every_row_has_a_test_or_a_reason():
    """Files and tests that are named exist."""
    rows = ((p, name, row) for p in ROWS for name, row in ROWS[p].items())
    faults = {(p, name): text for p, name, row in rows if (text := wrong(row))}
    assert faults == {}


def test_every_experiment_says_how_it_is_reproduced():
    """In one of three ways, followed by what differs."""
    ways = re.compile(r"exactly|in size|on other data")
    for paper, rows in ROWS.items():
        for name, row in rows.items():
            way = row.get("reproduced", "")
            assert bool(ways.match(way)) == bool(way), (paper, name)
            assert way or not re.match("Figure|Table|Section 5.3", name), (paper, name)


def test_every_numbered_statement_has_a_row():
    """Under the paper that it is in."""
    papers = {paper.partition(",")[0].split()[0]: ROWS[paper] for paper in ROWS}
    assert papers.keys() == NUMBERED.keys()
    missing = [(p, n) for p in NUMBERED for n in NUMBERED[p] if n not in papers[p]]
    assert missing == []
    assert len(list(chain(*NUMBERED.values()))) > 80


def test_a_row_that_shows_nothing_is_found():
    """The checks can fail."""
    row = {"says": "It holds.", "file": "dpflow/plots.py"}
    test = "tests/test_seeds.py::test_without_a_definition"
    for wrong_row in (
        {},
        {"says": "It holds."},
        {"says": "It holds.", "why": "no"},
        row,
        {**row, "file": "nowhere.py", "test": "tests/test_seeds.py::x"},
        {**row, "test": test},
    ):
        assert wrong(wrong_row)


def test_the_page_has_every_row():
    """Each with its file and test, or with its reason."""
    page = SCRIPT["page"](ROWS)
    for row in chain.from_iterable(rows.values() for rows in ROWS.values()):
        assert row.get("why", row.get("test", "").partition("::")[2]) in page
    assert page.count("\n| ") == sum(map(len, ROWS.values())) + 2 * len(ROWS)
