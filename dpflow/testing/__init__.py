"""For the tests of your own pipelines: a ledger that is no real one.

The pytest fixture `dpflow_ledger` comes with dpflow; nothing has to be imported:

    def test_the_report_counts_visitors(dpflow_ledger):
        dpflow_ledger.use(POLICY)
        dpflow_ledger.silence_noise()
        assert visitors("monday") == 3

Without pytest, `ledger_for_tests()` is the same as a context manager.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpflow.testing.ledger import LedgerForTests

__all__ = ["dpflow_ledger", "ledger_for_tests"]


@contextmanager
def ledger_for_tests() -> Iterator[LedgerForTests]:
    """Give steps a new ledger for the length of a block, and keep all others closed.

    Yields:
        The ledger, with the project's policies applied by the first step. Its folder is
        removed at the end.
    """
    # Every run of pytest imports this file, most of them without need.
    from dpflow.testing.ledger import open_for_tests  # noqa: PLC0415

    with (
        TemporaryDirectory(prefix="dpflow-test-") as folder,
        open_for_tests(Path(folder).absolute()) as ledger,
    ):
        yield ledger


try:
    import pytest
except ImportError:
    __all__ = ["ledger_for_tests"]
else:

    @pytest.fixture
    def dpflow_ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerForTests]:
        """Give a new ledger to the steps of a test, and keep every other one closed.

        Noise is seeded and marked as test noise in the journal. See
        `dpflow.testing.ledger.LedgerForTests` for its methods.
        """
        with ledger_for_tests() as ledger:
            yield ledger
            # The variables that the test set would come back after those of the block.
            monkeypatch.undo()
