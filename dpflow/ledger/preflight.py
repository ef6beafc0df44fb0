"""A flow run that holds its whole worst case first, and what its steps draw of that.

A preflight is a reservation that no body runs under. Each of its steps moves a part of
it into a reservation of its own, in one transaction: `draw` from the preflight, then
`reserve` for the step. So what is held never falls in between, and passes no gate a
second time. A `seal` ends the preflight and returns what was not drawn; from then on
there is nothing to draw (docs/derivations/ledger.md#preflight).

A run whose preflight was refused may begin all the same: releases that are kept are
replayed, and every draw is refused with its preflight.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Rule
from dpflow.exceptions import (
    LedgerCorrupt,
    LedgerUnavailable,
    ReservationConflict,
    UnsupportedCost,
)
from dpflow.ledger.account import Account, append, check_kept, read_account
from dpflow.ledger.database import Row, Session
from dpflow.ledger.owner import Liveness
from dpflow.ledger.provenance import told_anew
from dpflow.ledger.records import Granted, Request
from dpflow.ledger.writer import writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """What the preflight of its run says about a step.

    Attributes:
        preflight: Id of the preflight's reservation.
        ended: Whether it was sealed or closed, or the ledger was repaired since: the
            run is over for the ledger.
        drawn: Whether it has the step's worst case left, on every account.
        refused: What the journal says of the preflight's refusal, if it was refused.
    """

    preflight: str
    ended: bool
    drawn: bool
    refused: Mapping[str, Any] | None = None

    def told(self) -> dict[str, Any]:
        """Return what the journal keeps with the step's reservation."""
        if self.refused is not None:
            return {"refused_with": self.refused["covers"]}
        return {"preflight": self.preflight, "drawn": self.drawn}


def announce_runs(session: Session, request: Request) -> None:
    """Say that the preflights of a request's runs will be read."""
    for run in _runs(request):
        session.soon("preflight_of_run", run=run)
    for run in request.preflights:
        session.soon("refusals_of_run", run=run)


def cover_of(
    session: Session, request: Request, pairs: Sequence[tuple[Account, Tally]]
) -> Cover | None:
    """Return what the nearest run's preflight says about a step; None without one.

    A preflight that was refused, of any run around it, says that it draws nothing.
    """
    for run in request.preflights:
        refused = _refused(session, run)
        if refused is not None:
            return Cover(preflight="", ended=False, drawn=False, refused=refused)
    for run in request.preflights:
        for row in session.rows("preflight_of_run", run=run):
            ended = row["state"] != "open"
            drawn = not ended and all(
                amount.fits_within(undrawn(session, account, row["id"]))
                for account, amount in pairs
                if any(amount.amounts)
            )
            return Cover(preflight=row["id"], ended=ended, drawn=drawn)
    return None


def _refused(session: Session, run: str) -> Mapping[str, Any] | None:
    """Return what the journal says of a run's preflight, if it was refused last."""
    newest = session.rows("preflight_of_run", run=run)
    if newest and newest[0]["state"] == "open":
        return None
    for row in reversed(session.rows("refusals_of_run", run=run)):
        body: dict[str, Any] = json.loads(row["body"])
        if body.get("covers") != run:
            continue
        # Another execution of the run may have held it since, and sealed it.
        held_since = newest and any(
            made["seq"] > row["seq"]
            for made in session.rows(
                "reserved_amount",
                account=row["account"],
                reservation=newest[0]["id"],
            )
        )
        place = {"account": row["account"], "dataset": row["dataset"]}
        return None if held_since else {**body, **place}
    return None


def undrawn(session: Session, account: Account, preflight: str) -> Tally:
    """Return what is left of a reservation on an account, as its journal tells.

    Raises:
        LedgerCorrupt: If an entry is not what was written, or too much was drawn.
    """
    rows = session.rows("reserved_amount", account=account.id, reservation=preflight)
    return _rest(session, account, rows[0]) if rows else account.rule.zero()


def _rest(session: Session, account: Account, reserved: Row) -> Tally:
    check_kept(reserved, "reserve")
    rest = Tally.from_text(reserved["amount"])
    where = {"account": account.id, "reservation": reserved["reservation"]}
    for draw in session.rows("draws_of_reservation", **where):
        check_kept(draw, "draw")
        amount = Tally.from_text(draw["amount"])
        if not amount.fits_within(rest):
            msg = f"more was drawn on account {account.id!r} than was reserved"
            raise LedgerCorrupt(msg)
        rest = rest - amount
    return rest


def amount_to_end(
    session: Session, row: Row, account: Account, reserved: Row, kind: str
) -> Tally:
    """Return how much of a charge is held on an account, for an entry that ends it.

    Args:
        session: The transaction.
        row: The reservation's row.
        account: The account.
        reserved: The entry that reserved there.
        kind: Of the entry that is to end it.

    Raises:
        ReservationConflict: If a preflight is to be settled, or voided after a draw.
        LedgerCorrupt: If the account does not hold it, or the entry was edited.
    """
    check_kept(reserved, "reserve")
    amount = rest = Tally.from_text(reserved["amount"])
    if row["run"] is not None:
        rest = _rest(session, account, reserved)
        if kind == "settle" or (kind == "void" and rest != amount):
            msg = (
                f"reservation {row['id']} is the preflight of flow run {row['run']}: "
                "its steps are settled each by itself, and its end is a seal"
            )
            raise ReservationConflict(msg, reservation=row["id"])
    if not rest.fits_within(account.held):
        msg = f"account {account.id!r} does not hold reservation {row['id']}"
        raise LedgerCorrupt(msg)
    return rest


def draw(
    session: Session,
    charge: tuple[Account, Tally],
    cover: Cover,
    request: Request,
    body: Mapping[str, Any],
) -> Account:
    """Take a step's worst case out of its preflight; its reserve holds it at once."""
    account, amount = charge
    if not any(amount.amounts):
        return account
    return append(
        session,
        account,
        "draw",
        amount,
        settled=account.settled,
        held=account.held - amount,
        reservation=cover.preflight,
        run=request.flow_run,
        body={**body, "for": request.reservation},
        writer=writer(),
    )


# Preflights


def check_additive(rule: Rule, account: str) -> None:
    """Refuse a preflight where a whole run cannot be held as the sum of its steps.

    Raises:
        UnsupportedCost: For budgets per person, and plans that ask for their order.
    """
    members = getattr(rule, "members", ())
    if rule.theorem == "individual":
        why = "its bound is reserved once and in full, for all steps together"
    elif any(getattr(each, "order", None) == "planned" for each in (rule, *members)):
        why = "its plan asks at each step whether that is the next one"
    else:
        return
    msg = (
        f"a preflight cannot hold a run on account {account!r}, which has the "
        f"{rule.theorem} rule: {why}. Leave its dataset out of preflight=."
    )
    raise UnsupportedCost(msg, theorem=rule.theorem)


def reopened(session: Session, request: Request, owners: Liveness) -> Granted | None:
    """Find the preflight that an earlier execution of the same run has left open.

    A run whose process died is taken over, undrawn rest and all. What the run declares
    may have changed: then the rest is returned, and a new preflight is decided.

    Raises:
        ReservationConflict: If another process runs it now, with another declaration.
    """
    if request.covers is None:
        return None
    row = _open_locked(session, request.covers, request.locked)
    if row is None:
        return None
    same = row["fingerprint"] == request.fingerprint()
    owned = row["owner"] == request.owner
    if not owned and not owners.alive(row["owner"]):
        session.post("adopt_preflight", reservation=row["id"], owner=request.owner)
    elif not owned and not same:
        msg = (
            f"another process runs flow run {request.covers} now, and declared another "
            "preflight. Wait for its end, or run the flow anew."
        )
        raise ReservationConflict(msg, reservation=row["id"])
    if same:
        return Granted(reservation=row["id"], accounts=tuple(_accounts(row)))
    post_seal(session, row, {"outcome": "declared anew"})
    return None


def _open_locked(session: Session, run: str, locked: Iterable[str]) -> Row | None:
    """Return a run's open preflight, read with its datasets locked, or None.

    Another declaration has others than the request: who runs it, and whether the ledger
    was repaired, may change until they are locked.
    """
    names = set(locked)
    while True:
        rows = session.rows("preflight_of_run", run=run)
        if not rows or rows[0]["state"] != "open":
            return None
        datasets = json.loads(rows[0]["datasets"])
        if names.issuperset(datasets):
            return rows[0]
        names.update(datasets)
        session.lock(sorted(names))


def note_preflight(session: Session, request: Request) -> None:
    """Say in the caller's transaction which run a new preflight holds.

    Raises:
        LedgerUnavailable: If another process declared that run meanwhile, for other
            datasets; who asks again is told.
    """
    rows = session.rows("preflight_of_run", run=request.covers)
    if rows and rows[0]["state"] == "open":
        msg = f"another process declared flow run {request.covers} just now; ask again"
        raise LedgerUnavailable(msg)
    session.post(
        "open_preflight",
        reservation=request.reservation,
        owner=request.owner,
        run=request.covers,
        number=rows[0]["number"] + 1 if rows else 1,
    )


def post_seal(session: Session, row: Row, facts: Mapping[str, Any]) -> None:
    """End a preflight on all its accounts and return what was not drawn.

    The caller has locked its datasets, as every draw has: after this there is none.
    """
    body = told_anew(json.loads(row["body"]), facts)
    # First, for a request that declares its run anew may still fail (`Part`).
    session.post("close_reservation", id=row["id"], state="sealed")
    for account_id in _accounts(row):
        account = read_account(session, account_id)
        where = {"account": account_id, "reservation": row["id"]}
        reserved = session.rows("reserved_amount", **where)
        if account is None or len(reserved) != 1:
            msg = f"account {account_id!r} lacks reservation {row['id']}"
            raise LedgerCorrupt(msg)
        rest = amount_to_end(session, row, account, reserved[0], "seal")
        append(
            session,
            account,
            "seal",
            rest,
            settled=account.settled,
            held=account.held - rest,
            reservation=row["id"],
            run=reserved[0]["run"],
            body=body,
            writer=writer(),
        )


def _accounts(row: Row) -> list[str]:
    found: list[str] = json.loads(row["accounts"])
    return found


def _runs(request: Request) -> tuple[str, ...]:
    own = () if request.covers is None else (request.covers,)
    return (*own, *request.preflights)
