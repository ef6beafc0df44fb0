"""The end of a preflight, and what the last run of a flow cost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpflow.accounting.costs import Cost, cost_from_description
from dpflow.exceptions import ReservationConflict
from dpflow.ledger.again import surely
from dpflow.ledger.database import Row
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.preflight import post_seal

#: So many of the journal's newest entries are read to find a flow's last run.
_WINDOW = 20_000


def seal(ledger: Ledger, run: str, *, outcome: str) -> bool:
    """End a flow run's preflight: no step draws after it, and the rest is returned.

    Args:
        ledger: The ledger.
        run: The run that the preflight holds.
        outcome: How the run ended, "completed" or "failed", for the journal.

    Returns:
        Whether there was one to seal: it was refused, sealed or closed before, if not.

    Raises:
        ReservationConflict: If another process runs the flow, or the ledger lost
            charges since: then nothing is returned.
        LedgerUnavailable: If the ledger did not answer; the rest stays held.
    """
    return surely(lambda again: _seal_once(ledger, run, outcome, again=again))


def _seal_once(ledger: Ledger, run: str, outcome: str, *, again: bool) -> bool:
    with ledger.writing(()) as session:
        newest = session.rows("preflight_of_run", run=run)
        if not newest:
            return False
        # With its datasets locked: a draw is before this, or after it and refused.
        row = ledger.locked_row(session, newest[0]["id"])
        if session.rows("preflight_of_run", run=run)[0]["state"] == "repaired":
            # Draws may be among the charges that it lost and charged again.
            msg = (
                f"the ledger was repaired since preflight {row['id']} was made, "
                "so nobody knows what was drawn of it; close it with `dpflow ledger "
                "close-reservation` when its run has ended"
            )
            raise ReservationConflict(msg, reservation=row["id"])
        if row["state"] != "open":
            # Only this process seals it, so the first was not in vain.
            return again and row["state"] == "sealed"
        if row["owner"] != ledger.owners.mine():
            msg = (
                f"another process runs the flow run {run} and seals its preflight "
                f"{row['id']}"
            )
            raise ReservationConflict(msg, reservation=row["id"])
        post_seal(session, row, {**ledger.conditions.facts, "outcome": outcome})
        return True


@dataclass(frozen=True, slots=True)
class Charged:
    """What one step of a run was charged for."""

    datasets: tuple[str, ...]
    partitions: tuple[str, ...]
    cost: Cost


def last_costs(ledger: Ledger, flow: str, *, but: str) -> list[Charged]:
    """Return the costs of a flow's last completed run; none if there was no such run.

    A run is completed if it met no refusal, every charge was settled, and a step that
    failed was run again to its end. A release that it replayed cost nothing.

    Args:
        ledger: The ledger to read.
        flow: Name of the flow, as policies name it.
        but: Id of a run to pass over: the one that asks.
    """
    with ledger.database.read() as session:
        newest = session.rows(
            "history", dataset=None, account_kind=None, limit=_WINDOW + 1
        )
        whole = len(newest) <= _WINDOW
    runs: dict[str, list[Row]] = {}
    for row in newest:
        if row["run"] is not None and json.loads(row["body"]).get("flow") == flow:
            runs.setdefault(row["run"], []).append(row)
    names = list(runs)
    if not whole and names:
        names.pop()  # its beginning may be older than what was read
    for name in names:
        charged = _completed(reversed(runs[name])) if name != but else []
        if charged:
            return charged
    return []


def _completed(rows: Iterable[Row]) -> list[Charged]:
    """Return what a run's steps were charged for, or nothing if it did not complete."""
    open_now: set[str] = set()
    done: dict[str, Charged] = {}
    failed: list[str] = []
    succeeded: set[str] = set()
    for row in rows:
        body, name, kind = json.loads(row["body"]), row["reservation"], row["kind"]
        if kind in {"refuse", "forfeit"} or (
            kind == "seal" and body["outcome"] == "failed"
        ):
            return []
        if kind == "reserve" and body.get("covers") is None:
            open_now.add(name)
        elif kind == "void":
            open_now.discard(name)
        elif kind == "settle":
            open_now.discard(name)
            if body.get("outcome") == "completed":
                done[name] = _charged(body)
                succeeded.add(str(body.get("step")))
            else:
                failed.append(str(body.get("step")))
    if open_now or not succeeded.issuperset(failed):
        return []
    return list(done.values())


def _charged(body: dict[str, object]) -> Charged:
    def names(key: str) -> tuple[str, ...]:
        found = body.get(key) or ()
        assert isinstance(found, Sequence)
        return tuple(map(str, found))

    cost = body["cost"]
    assert isinstance(cost, dict)
    return Charged(names("datasets"), names("partitions"), cost_from_description(cost))
