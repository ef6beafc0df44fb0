"""One ledger for one data source.

Two ledgers on the same data would each promise its own budget, and together lose the
sum. A policy that names its `source` is governed by the first ledger that used it: the
place of the witness remembers which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.witness.base import Witness
from dpflow.policy import Policy


class Sources:
    """The data sources of one ledger.

    Args:
        ledger: Its id.
        witness: Memory of which ledger governs a source; None if it is waived, and
            then nothing is noticed.
    """

    def __init__(self, ledger: str, witness: Witness | None) -> None:
        self.ledger = ledger
        self._witness = witness
        self._mine: set[str] = set()

    def others(self, policies: Iterable[Policy]) -> Mapping[str, str]:
        """Return which other ledgers govern the sources of some policies, by source.

        Raises:
            LedgerUnavailable: If the place of the witness does not answer.
        """
        found: dict[str, str] = {}
        for policy in policies:
            source = policy.source
            if source is None or source in self._mine or self._witness is None:
                continue
            governor = self._witness.claim(source)
            if governor == self.ledger:
                # It never changes.
                self._mine.add(source)
            else:
                found[source] = governor
        return found

    def check(self, policies: Iterable[Policy], others: Mapping[str, str]) -> None:
        """Refuse a step on a source that another ledger governs.

        Args:
            policies: Of the step's datasets.
            others: Which other ledgers govern their sources.

        Raises:
            ConfigurationError: If another ledger governs one of the sources.
        """
        for policy in policies:
            governor = others.get(policy.source or "")
            if governor is None:
                continue
            place = "" if self._witness is None else self._witness.place
            msg = (
                f"ledger {governor} governs the data source {policy.source!r} of "
                f"dataset {policy.dataset!r}, according to the witness {place}; this "
                f"is ledger {self.ledger}. Two ledgers on the same data would lose "
                "more than either promises. Set DPFLOW_LEDGER_URL to the governing "
                "ledger; the step did not run."
            )
            raise ConfigurationError(msg)
