"""The mutants themselves take long to judge; that they still are mutants does not."""

from __future__ import annotations

import pytest

from tests.hunts.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_no_mutant_is_stale(mutant: Mutant) -> None:
    """Its line is in the ledger, once; else the campaign would end by saying so."""
    sources = (ROOT / "dpflow" / "ledger").rglob("*.py")
    assert sum(path.read_text("utf-8").count(mutant.old) for path in sources) == 1
