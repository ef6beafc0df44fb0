"""A ledger in memory: one process, no file, no witness; the rest is as in a file.

The tests of the ledger that take the fixture `path` run on it, unless a marker names
other storages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from dpflow.exceptions import ConfigurationError, LedgerMissing
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.ledger.tables.sqlite import forget_memory
from tests.ledger.processes import Child
from tests.ledger.support import granted, refusal

pytestmark = pytest.mark.quick


@pytest.fixture
def place() -> Iterator[str]:
    """Give the URL of a ledger in memory that is not there yet."""
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    forget_memory(url)


def test_it_is_never_made_by_opening(place):
    """Nor twice, nor without a name."""
    with pytest.raises(LedgerMissing, match="ends with its process"):
        open_ledger(place)
    create_ledger(place)
    with pytest.raises(ConfigurationError, match="already"):
        create_ledger(place)
    with pytest.raises(ConfigurationError, match="no name"):
        create_ledger("memory://")


@pytest.mark.promise("fork")
def test_a_forked_child_is_refused(place):
    """Its copy would spend the same budget again."""
    ledger = create_ledger(place)
    granted(ledger)
    text = Child(lambda say: say(refusal(lambda: granted(ledger)))).end()
    assert text == (0, ["LedgerMissing"])
    granted(ledger)
