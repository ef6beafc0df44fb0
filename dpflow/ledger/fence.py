"""The fence around a test: while it stands, no ledger but the test's own is opened."""

from __future__ import annotations

import os

from dpflow.exceptions import ConfigurationError

#: The only URL that may be opened; child processes inherit it.
FENCE_VARIABLE = "DPFLOW_TEST_LEDGER_ONLY"


def check_fence(url: str) -> None:
    """Refuse every ledger but the one that a test has to itself.

    Raises:
        ConfigurationError: If a test runs and the URL names another ledger.
    """
    only = os.environ.get(FENCE_VARIABLE)
    if only and url != only:
        # The URL may hold a password.
        kind = url.partition(":")[0][:20]
        msg = (
            f"a {kind} ledger was asked for inside a test that uses dpflow_ledger, "
            "which keeps every ledger but its own closed. Remove what names the other "
            "one (DPFLOW_LEDGER_URL, a Prefect block, open_ledger) from the test, or "
            "do without the fixture."
        )
        raise ConfigurationError(msg)
