"""Releases: a replay at no cost, and a withdrawal, which deletes a value only."""

from __future__ import annotations

from dpflow.accounting.costs.text import python_form
from dpflow.exceptions import ReservationConflict
from dpflow.ledger.canonical import canonical
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.requests import Busy, Granted, Replayed, Request, cost_text
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Charge, Release

# A command that was sent before


def answer_sent_charge(rows: Rows, charge: Charge, request: Request) -> Decision:
    """Answer an id that was sent before exactly as it was answered then.

    Raises:
        ReservationConflict: If it was another request, or the charge has ended.
    """
    is_own = (charge.owner, charge.state) == (request.owner, "open")
    if not (is_own and is_same_request(charge, request)):
        msg = (
            f"reservation {request.reservation} was made for another request or is "
            f"{charge.state} already; every execution needs an id of its own"
        )
        raise ReservationConflict(msg, reservation=request.reservation)
    parts = rows.charge_datasets
    earlier = ((p.dataset, p.reserve_number, str(p.reserve_hash)) for p in parts)
    answer = Granted(reservation=charge.id, accounts=charge.accounts)
    return Decision(answer=answer, earlier=tuple(earlier))


def is_same_request(charge: Charge, request: Request) -> bool:
    """Return True if a charge was made by an equal request."""
    stated = charge.request
    return (
        charge.step == request.step
        and charge.flow == request.flow
        and charge.run == request.flow_run
        and charge.release_key == request.release_key
        and canonical(stated["cost"]) == cost_text(request.cost)
        and sorted(stated["datasets"]) == sorted(request.datasets)
        and stated["partitions"] == list(request.partitions)
    )


# Releases


def find_release(rows: Rows, request: Request) -> Replayed | Busy | None:
    """Look the release key up: replay it, wait for a live claim, or go on."""
    release, charge = rows.release, rows.release_charge
    if release is None or charge is None or release.state == "free":
        return None
    if any(rows.book(name).frozen is not None for name in request.locked):
        # Frozen means that nothing is answered, be it free: the gates refuse.
        return None
    if release.state == "settled" and not request.fresh:
        return replay(release, charge, request)
    if release.state == "claimed" and rows.claimant_is_alive:
        return Busy(reservation=charge.id, owner=charge.owner)
    return None


def replay(release: Release, charge: Charge, request: Request) -> Replayed | None:
    """Replay a release, unless its value is deleted.

    Raises:
        ReservationConflict: If its value was not stored, or it answers other arguments,
            or the step refuses another cost.
    """
    stated = charge.request
    arguments, before = request.arguments or {}, stated.get("arguments", {})
    differ = [
        name
        for name in sorted({*arguments, *before} - {""})
        if arguments.get(name, "") not in {before.get(name), None}
    ]
    changed = canonical(stated["cost"]) != cost_text(request.cost)
    made_at = python_form(stated["cost"]) if changed else None
    if release.digest is None and request.arguments is not None:
        why = "was charged, but its value was not kept. Return what can be kept"
    elif release.value is None:
        return None
    elif before.get("") not in {None, *request.makers}:
        why = (
            f"belongs to another function than {next(iter(request.makers.values()))!r}."
            " If the function was moved or renamed, say moved_from= with its former "
            'file and name, such as "flows/old.py:count"; else give each function its '
            "own release_key= or name="
        )
    elif differ:
        why = (
            f"was made for another value of {', '.join(differ)}. Write what "
            "distinguishes the two into release_key=, or ignore=(...) if the output "
            "does not depend on it"
        )
    elif changed and request.on_change == "refuse":
        why = (
            f"was made at {made_at}, the step declares {request.cost!r} now, and it "
            'says on_change="refuse". Remove that to replay it'
        )
    else:
        return Replayed(charge.id, release.value, str(release.digest), made_at)
    msg = (
        f"release {request.key_text!r} of step {charge.step!r} {why}; fresh=True "
        "draws it anew, at a new charge."
    )
    raise ReservationConflict(msg, release_key=request.key_text)


# Withdrawals


def decide_withdrawal(
    rows: Rows, author: Author, digest: str | None, reason: str
) -> Decision:
    """Delete the value of a release; the answer is whether there was one."""
    release = rows.release
    if release is None or release.value is None:
        return Decision(answer=False)
    if (release.state, release.digest) != ("settled", digest):
        return Decision(answer=False)
    decision = Decision(author, answer=True)
    withdrawn = release._replace(state="withdrawn", value=None)
    decision.changes.append(("put_release", withdrawn))
    stated = {"release": release.key, "digest": digest, "reason": reason}
    dataset, body = rows.book(release.dataset), {**author.provenance, **stated}
    about = release.charge, release.step, None, None
    decision.append(dataset, "withdraw", body=body, about=about)
    return decision
