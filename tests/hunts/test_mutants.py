"""The mutants themselves take long to judge; that they still are mutants does not."""

from __future__ import annotations

import pytest

from tests.hunts.broken.mutant import STAGES, Mutant
from tests.hunts.mutants import MUTANTS, ROOT, sources


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_no_mutant_is_stale(mutant: Mutant) -> None:
    """Its line is there once; else the campaign would end by saying so."""
    texts = [path.read_text("utf-8") for path in sources(ROOT)]
    assert sum(text.count(mutant.old) for text in texts) == 1


@pytest.mark.parametrize("stage", STAGES)
def test_what_may_notice_is_there(stage: str) -> None:
    """A file of tests that moves takes its place in the list along."""
    places = [place for place in STAGES[stage] if place.startswith("tests/")]
    assert places
    assert all((ROOT / place).exists() for place in places)
