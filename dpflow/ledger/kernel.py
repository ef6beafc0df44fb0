"""Reserve, settle, void, forfeit: the life of a charge.

Every operation is one transaction. A step may run only after `reserve` answered
`Granted`; a charge that nobody settles stays in full, for ever.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpflow.accounting.costs import cost_from_description
from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Odometer, Outcome
from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    InvalidCost,
    LedgerCorrupt,
    LedgerUnavailable,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.account import Account, append, read_account
from dpflow.ledger.database import SCHEMA_VERSION, Database, Row, Session
from dpflow.ledger.decide import decide
from dpflow.ledger.owner import Owners
from dpflow.ledger.provenance import provenance
from dpflow.ledger.records import (
    Answer,
    Conditions,
    Request,
    canonical,
    digest,
    is_id,
)
from dpflow.ledger.writer import writer


class Ledger:
    """The operations on one ledger.

    Args:
        database: Where it is kept.
        owners: Who holds what.
        environment: What this process runs in; None if nobody said.
        conditions: How requests are decided.

    Raises:
        ConfigurationError: If the ledger serves another environment.
    """

    def __init__(
        self,
        database: Database,
        owners: Owners,
        *,
        environment: str | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        self.database = database
        self.owners = owners
        self.conditions = conditions or Conditions(facts=provenance())
        with database.read() as session:
            row = _identity(session, database.place)
            serves = session.rows("read_environment")[0]["environment"]
        self.environment: str | None = serves
        _check_environment(database.place, serves, environment)
        self.id: str = row["ledger_id"]
        self._secret = bytes.fromhex(row["release_secret"])

    @property
    def place(self) -> str:
        """Where the ledger is, for messages."""
        return self.database.place

    def release_key(self, *parts: object) -> str:
        """Return the keyed digest of what identifies a release.

        The key is the ledger's own secret, so that a digest does not tell what it
        was made of to anyone who lacks the ledger.
        """
        text = canonical(list(parts)).encode()
        return hmac.new(self._secret, text, "sha256").hexdigest()

    def reserve(self, request: Request) -> Answer:
        """Hold a step's worst case on every account, or replay, or refuse.

        Raises:
            BudgetRefused: If a gate does not admit the step; nothing is charged.
            PolicyChanged: If the policy file differs from what the ledger pinned.
            UnsupportedCost: If a theorem has no price for the cost.
            ReservationConflict: If the id or the release key means something else.
            LedgerUnavailable: If the ledger did not answer; the step may not run.
        """
        answer = self.reserve_many([request])[0]
        if isinstance(answer, DpflowError):
            raise answer
        return answer

    def reserve_many(self, requests: Sequence[Request]) -> list[Answer | DpflowError]:
        """Decide several requests one after another in one transaction."""
        try:
            return self._reserve_once(requests)
        except LedgerUnavailable as error:
            if "waited" in error.details:
                # Nothing was sent; waiting twice as long helps nobody.
                raise
            # The outcome of a failed commit is unknown. The ids were made before
            # sending, so asking again either finds the answer or decides anew.
            return self._reserve_once(requests)

    @contextmanager
    def writing(self, datasets: Iterable[str]) -> Iterator[Session]:
        """Run a block in one transaction that no other writer of these overlaps."""
        with self.database.write() as session:
            self._check_identity(session)
            session.lock(sorted(set(datasets)))
            yield session

    def _reserve_once(self, requests: Sequence[Request]) -> list[Answer | DpflowError]:
        with self.writing(d for r in requests for d in r.datasets) as session:
            return [self._decide_or_error(session, request) for request in requests]

    def _decide_or_error(
        self, session: Session, request: Request
    ) -> Answer | DpflowError:
        """Decide one request; an error leaves no trace of it in the transaction."""
        session.change("savepoint")
        try:
            answer: Answer | DpflowError = decide(
                session, request, self.owners, self.conditions
            )
        except (LedgerUnavailable, LedgerCorrupt):
            raise
        except DpflowError as error:
            session.change("rollback_to_savepoint")
            answer = error
        session.change("release_savepoint")
        return answer

    def would_answer(self, request: Request) -> Answer | DpflowError:
        """Say how a request would be decided now; nothing is kept of it."""
        with self.writing(request.datasets) as session:
            session.change("savepoint")
            answer = self._decide_or_error(session, request)
            session.change("rollback_to_savepoint")
            session.change("release_savepoint")
        return answer

    def settle(
        self,
        reservation: str,
        *,
        outcome: str = "completed",
        value: str | None = None,
        body: Mapping[str, Any] | None = None,
        reported: Outcome | None = None,
    ) -> None:
        """Post a charge and, in the same transaction, keep the step's release.

        A step that reports how it came out is charged what its accounts' theorems
        allow for that, and never more than was reserved; any other, in full.

        Args:
            reservation: The id that was granted.
            outcome: "completed", or "failed": an error is an output and costs as much.
            value: The encoded output; None keeps nothing to replay.
            body: Further facts for the journal.
            reported: Number of sub-steps that ran, or cell of the mechanism's output.

        Raises:
            ReservationConflict: If the charge was voided or forfeited.
        """
        with self.database.write() as session:
            row = self._locked_row(session, reservation)
            if row["state"] == "settled":
                return
            kept = None if value is None else digest(value)
            facts = {"outcome": outcome, "digest": kept, **(body or {})}
            if reported is not None:
                facts["reported"] = reported
            self._end(session, row, "settle", "settled", facts)
            key = row["release_key"]
            if key is None:
                return
            if outcome != "completed":
                session.change("drop_claim", release_key=key, reservation=reservation)
                return
            session.change(
                "settle_release",
                release_key=key,
                reservation=reservation,
                value=value,
                digest=kept,
            )

    def void(self, reservation: str, *, reason: str) -> None:
        """Give a charge back whose body certainly never started.

        Only the process that reserved knows that, so only it may void.

        Raises:
            ReservationConflict: If another process reserved it, or it has ended.
        """
        with self.database.write() as session:
            row = self._locked_row(session, reservation)
            if row["owner"] != self.owners.mine():
                msg = f"reservation {reservation} belongs to another process"
                raise ReservationConflict(msg, reservation=reservation)
            self._end(session, row, "void", "void", {"reason": reason})
            if row["release_key"] is not None:
                session.change(
                    "drop_claim",
                    release_key=row["release_key"],
                    reservation=reservation,
                )

    def forfeit(self, reservation: str, *, because: str) -> None:
        """Close a charge that nobody will settle; it is posted in full.

        Raises:
            ReservationConflict: If its process still runs, or it has ended.
        """
        with self.database.write() as session:
            row = self._locked_row(session, reservation)
            if row["state"] == "open" and self.owners.alive(row["owner"]):
                msg = f"the process that holds reservation {reservation} still runs"
                raise ReservationConflict(msg, reservation=reservation)
            self._end(session, row, "forfeit", "forfeited", {"because": because})

    def _check_identity(self, session: Session) -> None:
        """Check that this is still the ledger that was opened, and perhaps pinned."""
        found = _identity(session, self.place)["ledger_id"]
        if found != self.id:
            msg = (
                f"the ledger {self.place} had id {self.id} when it was opened and has "
                f"{found} now: another ledger was put in its place. Restore the first."
            )
            raise LedgerCorrupt(msg, ledger=self.place)

    def _locked_row(self, session: Session, reservation: str) -> Row:
        """Read a reservation, with its datasets kept from other writers."""
        self._check_identity(session)
        # What no id may be is known to no ledger, and some drivers choke on it.
        sane = is_id(reservation)
        rows = session.rows("read_reservation", id=reservation) if sane else []
        if not rows:
            msg = f"the ledger {self.place} knows no reservation {reservation!s:.60}"
            raise ReservationConflict(msg, reservation=reservation)
        # Written once; what else the row says may change until the lock is held.
        session.lock(json.loads(rows[0]["datasets"] or "[]"))
        return session.rows("read_reservation", id=reservation)[0]

    def _end(
        self,
        session: Session,
        row: Row,
        kind: str,
        state: str,
        facts: Mapping[str, Any],
    ) -> None:
        """End a charge on all its accounts."""
        reservation = row["id"]
        if session.change("close_reservation", id=reservation, state=state) != 1:
            msg = f"reservation {reservation} is {row['state']} already"
            raise ReservationConflict(msg, reservation=reservation)
        body = {**json.loads(row["body"]), **self.conditions.facts, **facts}
        for account_id in json.loads(row["accounts"]):
            account = read_account(session, account_id)
            held = session.rows(
                "reserved_amount", account=account_id, reservation=reservation
            )
            if account is None or len(held) != 1:
                msg = f"account {account_id!r} lacks reservation {reservation}"
                raise LedgerCorrupt(msg, ledger=self.place)
            amount = Tally.from_text(held[0]["amount"])
            if not amount.fits_within(account.held):
                msg = f"account {account_id!r} does not hold reservation {reservation}"
                raise LedgerCorrupt(msg, ledger=self.place)
            posted = amount
            if kind == "settle":
                posted = _realised(account, row, amount, facts.get("reported"))
            gain = account.rule.zero() if kind == "void" else posted
            append(
                session,
                account,
                kind,
                posted,
                settled=account.settled + gain,
                held=account.held - amount,
                reservation=reservation,
                run=held[0]["run"],
                body=body,
                writer=writer(),
            )

    def close(self) -> None:
        """Close the ledger's files; open reservations of this process are forfeited."""
        self.owners.close()
        self.database.close()


def _check_environment(place: str, serves: str | None, runs: str | None) -> None:
    """Refuse a ledger that was made for another environment than this one."""
    if serves is not None and serves != runs:
        this = "says none" if runs is None else f"says {runs!r}"
        msg = (
            f"the ledger {place} serves the environment {serves!r}, and this run "
            f"{this}. Set DPFLOW_ENVIRONMENT={serves} if that is what it is, or "
            "DPFLOW_LEDGER_URL to the ledger of its own environment."
        )
        raise ConfigurationError(msg)


def _realised(
    account: Account, row: Row, reserved: Tally, reported: Outcome | None
) -> Tally:
    """Return what a settled charge posts: all of it, unless the theorem gives back."""
    if reported is None:
        return reserved
    cost, rule = cost_from_description(json.loads(row["cost"])), account.rule
    try:
        if account.price(cost) != reserved:
            # Reserved for more than one unit at once, or by an older solver.
            return reserved
        if isinstance(rule, Odometer) and account.halt is None:
            realised = rule.charge_realised(cost, reported)
        else:
            realised = rule.price_realised(cost, reported)
    except (InvalidCost, UnsupportedCost):
        return reserved
    return realised if realised.fits_within(reserved) else reserved


def identity_row(session: Session, place: str) -> Row:
    """Return the row that says which ledger this is, whatever its schema.

    Raises:
        LedgerCorrupt: If there is none.
        LedgerUnavailable: If only a newer dpflow may write to it.
    """
    rows = session.rows("read_ledger")
    if len(rows) != 1:
        msg = f"{place} is no ledger: its identity row is missing"
        raise LedgerCorrupt(msg, ledger=place)
    row = rows[0]
    if row["min_writer"] > SCHEMA_VERSION:
        msg = (
            f"the ledger {place} needs a dpflow that writes schema "
            f"{row['min_writer']}; this one writes {SCHEMA_VERSION}. Upgrade dpflow."
        )
        raise LedgerUnavailable(msg, ledger=place)
    return row


def _identity(session: Session, place: str) -> Row:
    row = identity_row(session, place)
    if row["schema_version"] < SCHEMA_VERSION:
        msg = (
            f"the ledger {place} has schema {row['schema_version']}, this dpflow needs "
            f"{SCHEMA_VERSION}. Back it up and run `dpflow ledger migrate`."
        )
        raise LedgerUnavailable(msg, ledger=place)
    return row
