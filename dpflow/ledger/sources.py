"""One ledger for one data source, unless a part of its budget was given to another.

Two ledgers on the same data would each promise its own budget, and together lose the
sum. A policy that names its `source` is governed by the first ledger that used it: the
place of the witness remembers which. Any other needs a grant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.database import Session
from dpflow.ledger.grants import Grant, check_covers, grant_from_facts
from dpflow.ledger.terms import Term, all_terms, is_charged, newest_term
from dpflow.ledger.witness_base import WitnessBase
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
        self, ledger: str, environment: str | None, witness: WitnessBase | None
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
            self._mine.add(source)
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

    def check(self, session: Session, policies: Iterable[Policy]) -> None:
        """Refuse a step on a source that another ledger governs.

        Raises:
            ConfigurationError: If there is no grant, or it does not cover the term.
            LedgerUnavailable: If the place of the witness does not answer.
        """
        for policy in policies:
            if policy.source is None:
                continue
            governor = self.governor(policy.source)
            if governor == self.ledger:
                continue
            term = newest_term(session, policy.dataset)
            grant = None if term is None else grant_of(session, term)
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


def grant_of(session: Session, term: Term) -> Grant | None:
    """Return the grant under which a term was opened; None if it needed none."""
    rows = session.rows("read_entry", account=term.account, seq=1)
    facts = json.loads(rows[0]["body"]).get("grant") if rows else None
    return None if facts is None else grant_from_facts(facts)


def check_untaken(session: Session, grant: Grant, dataset: str) -> None:
    """Refuse a grant under which another dataset of this ledger has a term.

    It was charged once, and each of them would spend it. A second one that is applied
    at the same time waits for the first.

    Raises:
        ConfigurationError: If there is one.
    """
    session.lock([dataset, _name(grant)])
    for row in session.rows("term_pins"):
        place = f"{row['dataset']}#{row['number']}"
        rows = session.rows("read_entry", account=place, seq=1)
        facts = json.loads(rows[0]["body"]).get("grant") if rows else None
        if row["dataset"] != dataset and facts == asdict(grant):
            msg = (
                f"dataset {row['dataset']!r} of this ledger spends this grant already, "
                f"which was charged once: carve another one for dataset {dataset!r}"
            )
            raise ConfigurationError(msg)


def check_alone(session: Session, policy: Policy, grant: Grant | None = None) -> None:
    """Refuse a term on what another dataset of this ledger spends already.

    Under two names the same data would have two budgets. Datasets of one population are
    capped together, and a grant was charged where the source is governed.

    Args:
        session: The caller's transaction.
        policy: Of the dataset whose term is to name a source.
        grant: Under which it is opened, if any.

    Raises:
        ConfigurationError: If there is one, charged or governing.
    """
    if grant is not None:
        check_untaken(session, grant, policy.dataset)
        return
    newest = newest_term(session, policy.dataset)
    known = newest is not None and newest.pinned.get("source") == policy.source
    if policy.source is None or known:
        return
    # Two names that come at the same time wait for each other.
    session.lock([policy.dataset, f"source {policy.source}"])
    names = {row["dataset"] for row in session.rows("term_pins")} - {policy.dataset}
    for dataset in sorted(names):
        *before, last = all_terms(session, dataset)
        charged = [term for term in before if is_charged(session, term)]
        if any(_is_twin(term, policy) for term in (*charged, last)):
            msg = (
                f"the policy of dataset {policy.dataset!r} names the source "
                f"{policy.source!r} of {dataset!r}: under two names the same data "
                f"would have two budgets. Go on with {dataset!r}, or let one "
                "population cap both. The policy was not applied"
            )
            raise ConfigurationError(msg)


def _is_twin(term: Term, policy: Policy) -> bool:
    """Say whether a term is on a policy's source with no cap on both together."""
    population = term.pinned.get("population")
    together = population is not None and population == policy.population
    return term.pinned.get("source") == policy.source and not together


def _name(grant: Grant) -> str:
    """Return the name under which its giver registers a grant."""
    return f"grant {grant.digest}"
