"""What was answered before: an id that is sent again, and a release to replay."""

from __future__ import annotations

import json

from dpflow.exceptions import ReservationConflict
from dpflow.ledger.database import Session
from dpflow.ledger.owner import Liveness
from dpflow.ledger.records import Busy, Granted, Replayed, Request, cost_text
from dpflow.ledger.terms import frozen_by


def known(session: Session, request: Request) -> Granted | None:
    """Answer an id that was sent before exactly as it was answered then."""
    rows = session.rows("read_reservation", id=request.reservation)
    if not rows:
        return None
    row = rows[0]
    same = (row["fingerprint"], row["owner"], row["state"]) == (
        request.fingerprint(),
        request.owner,
        "open",
    )
    if not same:
        msg = (
            f"reservation {request.reservation} was made for another request or is "
            f"{row['state']} already; every execution needs an id of its own"
        )
        raise ReservationConflict(msg, reservation=request.reservation)
    return Granted(reservation=row["id"], accounts=tuple(json.loads(row["accounts"])))


def released(
    session: Session, request: Request, owners: Liveness
) -> Replayed | Busy | None:
    """Look the release key up: replay it, wait for a live claim, or go on."""
    if request.release_key is None:
        return None
    rows = session.rows("read_release", release_key=request.release_key)
    if not rows:
        return None
    if any(frozen_by(session, name) is not None for name in request.locked):
        # Frozen means that nothing is answered, be it free: the gates refuse.
        return None
    row = rows[0]
    replayable = row["state"] == "settled" and row["value"] is not None
    if replayable and not request.fresh:
        if row["cost"] != cost_text(request.cost):
            msg = (
                f"release {row['key_text']!r} of step {row['step']!r} was made at "
                f"cost {row['cost']}, now {cost_text(request.cost)}. "
                "Use another release_key for another cost."
            )
            raise ReservationConflict(msg, release_key=row["key_text"])
        return Replayed(
            reservation=row["reservation"],
            value=row["value"],
            digest=row["digest"],
        )
    if row["state"] == "claimed" and owners.alive(row["owner"]):
        return Busy(reservation=row["reservation"], owner=row["owner"])
    return None
