"""One ledger for one data source, unless a part of its budget was given to another.

Two ledgers on the same data would each promise its own budget, and together lose the
sum. A policy that names its `source` is governed by the first ledger that used it: the
place of the witness remembers which. Any other needs a grant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.grants import Grant, check_covers, grant_from_facts
from dpflow.ledger.model import State
from dpflow.ledger.rows import Term
from dpflow.ledger.witness.base import Witness
from dpflow.policy import Policy


class Sources:
    """The data sources of one ledger.

    Args:
        ledger: Its id.
        environment: What it serves; None for any.
        witness: What remembers which ledger governs a source; None if it is waived,
            and then nothing is noticed.
    """

    def __init__(
        self, ledger: str, environment: str | None, witness: Witness | None
    ) -> None:
        self.ledger = ledger
        self._environment = environment
        self._witness = witness
        self._mine: set[str] = set()

    def governor(self, source: str) -> str:
        """Return the id of the ledger that governs a source; this one, if none did.

        Raises:
            LedgerUnavailable: If the place of the witness does not answer.
        """
        if self._witness is None or source in self._mine:
            return self.ledger
        found = self._witness.claim(source)
        if found == self.ledger:
            # It never changes.
            self._mine.add(source)
        return found

    def others(self, policies: Iterable[Policy]) -> Mapping[str, str]:
        """Return which other ledgers govern the sources of some policies, by source.

        Raises:
            LedgerUnavailable: If the place of the witness does not answer.
        """
        found: dict[str, str] = {}
        for policy in policies:
            source = policy.source
            if source is None or source in self._mine:
                continue
            governor = self.governor(source)
            if governor != self.ledger:
                found[source] = governor
        return found

    def register(self, grant: Grant) -> None:
        """Let the taker of a grant see that this ledger gave it."""
        if self._witness is not None:
            self._witness.claim(_name(grant))

    def check_given(self, grant: Grant) -> None:
        """Refuse a grant that its giver did not register at the witness's place.

        Raises:
            ConfigurationError: If it is unknown there.
        """
        if self._witness is None or self._witness.claim(_name(grant)) == grant.giver:
            return
        msg = (
            f"ledger {grant.giver} gave no such grant, as far as "
            f"{self._witness.place} tells. Ask for the file that `dpflow ledger carve` "
            "wrote, and let both ledgers use the same place for their witnesses."
        )
        raise ConfigurationError(msg)

    def check(
        self, state: State, policies: Iterable[Policy], others: Mapping[str, str]
    ) -> None:
        """Refuse a step on a source that another ledger governs.

        Args:
            state: With the newest terms of the policies' books.
            policies: Of the step's datasets.
            others: Which other ledgers govern their sources.

        Raises:
            ConfigurationError: If there is no grant, or it does not cover the term.
        """
        for policy in policies:
            governor = others.get(policy.source or "")
            if governor is None:
                continue
            term = state.newest(policy.dataset)
            grant = None if term is None else grant_of(term)
            if grant is None or grant.giver != governor:
                raise self._governed(policy, governor)
            check_covers(grant, policy, self.ledger, self._environment)

    def _governed(self, policy: Policy, governor: str) -> ConfigurationError:
        place = "" if self._witness is None else self._witness.place
        msg = (
            f"the data source {policy.source!r} of dataset {policy.dataset!r} is "
            f"governed by ledger {governor}, as {place} tells, and this is ledger "
            f"{self.ledger}: together they would lose more than either promises. Use "
            "that ledger (DPFLOW_LEDGER_URL), or carve a part of its budget there with "
            f"`dpflow ledger carve {policy.dataset} --to {self.ledger}` and apply it "
            f"here with `dpflow policy apply {policy.dataset} --grant FILE`. The step "
            "did not run."
        )
        return ConfigurationError(msg)


def grant_of(term: Term) -> Grant | None:
    """Return the grant under which a term was opened; None if it needed none."""
    facts = term.facts.get("grant")
    return None if facts is None else grant_from_facts(facts)


def _name(grant: Grant) -> str:
    """Return the name under which its giver registers a grant."""
    return f"grant {grant.digest}"
