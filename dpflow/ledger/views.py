"""What people ask of a ledger: accounts, journal, open reservations."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Filter, Odometer, Rule
from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.account import (
    Account,
    account_from_row,
    read_account,
    remainder,
)
from dpflow.ledger.database import Row, Session
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.lifetime import term_views
from dpflow.ledger.pages import entries, sample
from dpflow.ledger.preflight import undrawn
from dpflow.ledger.records import (
    AccountView,
    AlertView,
    Entry,
    Halt,
    OpenReservation,
    RefusalView,
    TermView,
    UnusualSteps,
    Usage,
)
from dpflow.ledger.runs import RECENT
from dpflow.ledger.spending import OWN_NOISE
from dpflow.ledger.terms import all_terms, has_charges, newest_term
from dpflow.rounding import number_text


def accounts(ledger: Ledger, dataset: str | None = None) -> list[AccountView]:
    """Return the accounts of one dataset or of all, with the forfeited apart."""
    with ledger.database.read() as session:
        found = [
            account_from_row(row)
            for row in session.rows("list_accounts", dataset=dataset)
        ]
        dead = _held_by_the_dead(ledger, session)
        return [_view(session, account, dead.get(account.id, [])) for account in found]


def terms(ledger: Ledger, dataset: str) -> list[TermView]:
    """Return the terms of a dataset, oldest first."""
    with ledger.database.read() as session:
        return list(term_views(session, dataset))


def history(
    ledger: Ledger,
    dataset: str | None = None,
    *,
    kind: str | None = "dataset",
    limit: int = 50,
) -> list[Entry]:
    """Return the newest journal entries, newest first.

    Args:
        ledger: The ledger to read.
        dataset: Only this dataset's accounts.
        kind: Only accounts of this kind; each charge posts to several. None: all.
        limit: At most so many.
    """
    with ledger.database.read() as session:
        rows = session.rows("history", dataset=dataset, account_kind=kind, limit=limit)
        known = {
            row["id"]: account_from_row(row)
            for row in session.rows("list_accounts", dataset=dataset)
        }
    return [_entry(row, known[row["account"]]) for row in rows]


def decisions(ledger: Ledger, dataset: str | None = None) -> list[Entry]:
    """Return what people decided, newest first: no charge and no refusal of a step.

    A decision that stands in the journals of several accounts is returned once, as the
    whole dataset's has it.

    Args:
        ledger: The ledger to read.
        dataset: Only about this dataset or population.
    """
    with ledger.database.read() as session:
        rows = session.rows("decisions", dataset=dataset)
        known = {
            row["id"]: account_from_row(row)
            for row in session.rows("list_accounts", dataset=dataset)
        }
    found: list[list[Row]] = []
    former = None
    for row in rows:
        said = _decided(row)
        # One transaction's entries follow each other and say the same.
        if said == former and row["account"] not in [r["account"] for r in found[-1]]:
            found[-1].append(row)
        else:
            found.append([row])
        former = said
    return [
        _entry(row, known[row["account"]])
        for row in (min(each, key=lambda row: _rank(known, row)) for each in found)
    ]


def _decided(row: Row) -> tuple[Any, ...]:
    """Return what the entries of one decision have in common in all accounts."""
    body = json.loads(row["body"])
    names = ("who", "because", "policy", "cost", "evidence_sha256")
    return (row["kind"], row["reservation"], *(body.get(name) for name in names))


def _rank(known: Mapping[str, Account], row: Row) -> int:
    kinds = ("dataset", "population")
    kind = known[row["account"]].kind
    return kinds.index(kind) if kind in kinds else len(kinds)


def usage(ledger: Ledger, dataset: str) -> list[Usage]:
    """Return how the newest term's budget of a dataset was used up, oldest first."""
    with ledger.database.read() as session:
        rows = session.rows("list_accounts", dataset=dataset)
    found = [row for row in rows if row["kind"] == "dataset"]
    if not found:
        return []
    return account_usage(ledger, max(found, key=lambda row: int(row["term"]))["id"])


def account_usage(
    ledger: Ledger, account: str, *, most: int | None = None
) -> list[Usage]:
    """Return how one gate was used up, oldest first.

    Args:
        ledger: The ledger to read.
        account: Its id.
        most: Return about so many points, spread evenly; the newest is there, and so
            are as many refusals. Default: all.

    Returns:
        Nothing if there is no such account, or if it refuses nothing.
    """
    with ledger.database.read() as session:
        found = session.rows("read_account", id=account)
    if not found:
        return []
    gate, last = account_from_row(found[0]), found[0]["seq"]
    if gate.used_share(gate.rule.zero()) is None:
        return []
    stride = 1 if most is None else max(1, -(-last // most))
    even: list[Row] = []
    refused: deque[Row] = deque(maxlen=most)
    for row in sample(ledger.database, account, last, stride=stride):
        if row["seq"] == last or row["seq"] % stride == 0:
            even.append(row)
        else:
            refused.append(row)
    # The first entry opens the account.
    rows = sorted((*even, *refused), key=lambda row: int(row["seq"]))
    # A draw moves what is held already; the reserve that follows it tells the step.
    return [
        _usage(gate, row) for row in rows if row["seq"] > 1 and row["kind"] != "draw"
    ]


def _usage(gate: Account, row: Row) -> Usage:
    used = Tally.from_text(row["settled_after"]) + Tally.from_text(row["held_after"])
    body = json.loads(row["body"])
    return Usage(
        seq=row["seq"],
        kind=row["kind"],
        used_fraction=gate.used_share(used) or 0.0,
        reservation=row["reservation"],
        step=body.get("step"),
        release_key=body.get("release_key"),
        at=row["at"],
        covers=body.get("covers"),
    )


def open_reservations(ledger: Ledger) -> list[OpenReservation]:
    """Return the charges that nobody has settled, oldest first."""
    with ledger.database.read() as session:
        rows = session.rows("open_reservations")
        rests = _rests(session, rows)
    return [
        OpenReservation(
            reservation=row["id"],
            step=row["step"],
            accounts=tuple(json.loads(row["accounts"])),
            cost=json.loads(row["cost"]),
            body=json.loads(row["body"]),
            alive=ledger.owners.alive(row["owner"]),
            at=row["at"],
            covers=row["run"],
            undrawn=rests.get(row["id"], {}),
        )
        for row in rows
    ]


def _rests(
    session: Session, rows: Iterable[Row]
) -> dict[str, dict[str, dict[str, str]]]:
    """Return what the preflights among open reservations hold, by account."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        if row["run"] is not None:
            mine: dict[str, dict[str, str]] = {}
            found[row["id"]] = mine
            for name in json.loads(row["accounts"]):
                account = read_account(session, name)
                if account is not None:
                    rest = undrawn(session, account, row["id"])
                    mine[name] = account.rule.named(rest)
    return found


#: So many charges are looked through at once.
_PAGE = 500


def unusual_steps(
    ledger: Ledger, dataset: str, *, most: int | None = RECENT
) -> UnusualSteps:
    """Count the steps of a newest term that drew their own noise, failed or got lost.

    Every charge of a dataset posts to its own account, so that one is read.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; nothing is counted if it has no term yet.
        most: Read so many entries of its journal, the newest; None: all.
    """
    with ledger.database.read() as session:
        term = newest_term(session, dataset)
        # As it is: a page shows a damaged ledger, too, and says so.
        rows = [] if term is None else session.rows("read_account", id=term.account)
        waiting = session.rows("open_reservations")
    if not rows:
        return UnusualSteps()
    account = account_from_row(rows[0])
    start = 0 if most is None else max(account.seq - most, 0)
    own_noise = failed = 0
    forfeited = sum(
        account.id in json.loads(row["accounts"])
        and not ledger.owners.alive(row["owner"])
        for row in waiting
    )
    for row in entries(ledger.database, account.id, account.seq, above=start):
        if row["kind"] == "settle":
            body = json.loads(row["body"])
            failed += body.get("outcome") == "failed"
            own_noise += body.get("noise") in OWN_NOISE
        forfeited += row["kind"] == "forfeit"
    return UnusualSteps(
        own_noise=own_noise, failed=failed, forfeited=forfeited, older=start > 0
    )


def count_refusals(ledger: Ledger, flow_run: str) -> int:
    """Return how many refusals a flow run has met."""
    with ledger.database.read() as session:
        return len(session.rows("refusals_of_run", run=flow_run))


def refusal_of_run(
    ledger: Ledger, flow_run: str, *, after: int = 0
) -> BudgetRefused | None:
    """Return the refusal that a flow run met, if it met one.

    An exhausted budget is returned before a refused step, for it ends the flow. A
    preflight that was refused ends no run: its releases may all be replayed.

    Args:
        ledger: The ledger to read.
        flow_run: Id of the run.
        after: How many refusals to pass over, oldest first: those of an earlier
            execution of the run, which a new term or another policy may have answered.
    """
    with ledger.database.read() as session:
        rows = session.rows("refusals_of_run", run=flow_run)[after:]
    bodies = [{**json.loads(row["body"]), "dataset": row["dataset"]} for row in rows]
    bodies.sort(key=lambda body: body["refusal"] != BudgetExhausted.__name__)
    for body in bodies:
        if body.get("covers") is not None:
            continue
        kind = {k.__name__: k for k in (BudgetExhausted, BudgetRefused)}
        names = ("gate", "theorem", "asked", "left", "fits", "step", "flow", "cost")
        details = {name: body.get(name) for name in names}
        details["dataset"] = body["dataset"]
        if "refused_with" in body:
            details["refused_with"] = body["refused_with"]
        return kind[body["refusal"]](body["message"], flow_run=flow_run, **details)
    return None


def refusals(
    ledger: Ledger, *, dataset: str | None = None, limit: int = 1000
) -> list[RefusalView]:
    """Return the refused steps, newest first.

    Args:
        ledger: The ledger to read.
        dataset: Only those that this dataset's gates refused.
        limit: Read at most so many.
    """
    with ledger.database.read() as session:
        rows = session.rows("refusals", limit=limit)
    # An odometer that halts the run journals what another gate refused before it.
    first = {row["reservation"]: row for row in rows}
    found = [
        RefusalView(
            dataset=row["dataset"],
            account=row["account"],
            run=row["run"],
            body=json.loads(row["body"]),
            at=row["at"],
            term=row["term"],
            position=row["position"],
        )
        for row in first.values()
    ]
    found.sort(key=lambda each: -each.position)
    return [item for item in found if dataset in (None, item.dataset)]


def halts(ledger: Ledger, dataset: str) -> dict[str | None, Halt]:
    """Return what halted each flow: an exhausted budget that no grant came after.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; its population's gates refuse, too.
    """
    newest: dict[str | None, RefusalView] = {}
    for each in refusals(ledger):
        body = each.body
        exhausted = body.get("refusal") == BudgetExhausted.__name__
        if exhausted and dataset in body.get("datasets", [each.dataset]):
            newest.setdefault(body.get("flow"), each)
    found: dict[str | None, Halt] = {}
    with ledger.database.read() as session:
        numbers = [term.number for term in all_terms(session, dataset)]
        for flow, each in newest.items():
            # Every charge of a dataset posts to the account of its whole.
            if any(
                _granted_since(session, f"{dataset}#{number}", flow, each.position)
                for number in reversed(numbers)
            ):
                continue
            term = newest_term(session, each.dataset)
            current = term is not None and term.number == each.term
            found[flow] = Halt(flow=flow, refusal=each, current=current)
    return found


def _granted_since(
    session: Session, account: str, flow: str | None, position: int
) -> bool:
    """Say whether a flow was granted a step after a place in the journal."""
    while True:
        rows = session.rows(
            "reserved_since", account=account, above=position, limit=_PAGE
        )
        if any(json.loads(row["body"]).get("flow") == flow for row in rows):
            return True
        if len(rows) < _PAGE:
            return False
        position = rows[-1]["position"]


def used_of(ledger: Ledger, account: str) -> tuple[Rule, Tally] | None:
    """Return the rule of an account and all that is settled and held under it."""
    with ledger.database.read() as session:
        rows = session.rows("read_account", id=account)
    found = [account_from_row(row) for row in rows]
    return (found[0].rule, found[0].settled + found[0].held) if found else None


def alerts(ledger: Ledger, dataset: str) -> list[AlertView]:
    """Return the alerts that a dataset's accounts have given, newest first."""
    with ledger.database.read() as session:
        rows = session.rows("alerts_of_dataset", dataset=dataset)
    return [
        AlertView(
            dataset=row["dataset"],
            account=row["account"],
            gate=row["kind"],
            name=row["name"],
            threshold=row["threshold"],
            at=row["at"],
        )
        for row in rows
    ]


def _held_by_the_dead(ledger: Ledger, session: Session) -> dict[str, list[Tally]]:
    """Return the amounts on each account whose process has ended without settling."""
    found: dict[str, list[Tally]] = {}
    for row in session.rows("open_reservations"):
        if ledger.owners.alive(row["owner"]):
            continue
        for name in json.loads(row["accounts"]):
            account = read_account(session, name)
            if account is not None:
                held = undrawn(session, account, row["id"])
                found.setdefault(name, []).append(held)
    return found


def _closed(session: Session, account: Account) -> list[Tally]:
    rows = session.rows("forfeits_of_account", account=account.id)
    return [Tally.from_text(row["amount"]) for row in rows]


def _total(zero: Tally, amounts: Iterable[Tally]) -> Tally:
    for amount in amounts:
        zero = zero + amount
    return zero


def _view(session: Session, account: Account, dead: list[Tally]) -> AccountView:
    rule = account.rule
    zero, used = rule.zero(), account.settled + account.held
    dead_total = _total(zero, dead)
    closed_total = _total(zero, _closed(session, account))
    budget = rule.limit if isinstance(rule, Filter) else None
    return AccountView(
        id=account.id,
        dataset=account.dataset,
        term=account.term,
        kind=account.kind,
        name=account.name,
        theorem=rule.theorem,
        state=account.state,
        parameters=rule.parameters(),
        epsilon=number_text(rule.epsilon) if isinstance(rule, Filter) else None,
        delta=number_text(rule.delta) if isinstance(rule, Filter | Odometer) else "0",
        budget=None if budget is None else rule.named(budget),
        spent=rule.named(account.settled - closed_total),
        reserved=rule.named(account.held - dead_total),
        forfeited=rule.named(dead_total + closed_total),
        left=None if budget is None else rule.named(remainder(budget, used)),
        used_fraction=account.used_share(used),
        reading=rule.read(used) if isinstance(rule, Odometer) else None,
        halt_at=None if account.halt is None else number_text(account.halt),
        charged=any(used.amounts) or has_charges(session, account.id),
        opened=_opened(session, account),
    )


def _opened(session: Session, account: Account) -> dict[str, str] | None:
    """Return the budget that a filter was opened with, as its first entry tells."""
    rule = account.rule
    if not isinstance(rule, Filter):
        return None
    rows = session.rows("read_entry", account=account.id, seq=1)
    told = json.loads(rows[0]["body"]).get("rule", {}) if rows else {}
    now = {"epsilon": number_text(rule.epsilon), "delta": number_text(rule.delta)}
    return {name: str(told.get(name, text)) for name, text in now.items()}


def _entry(row: Row, account: Account) -> Entry:
    def named(text: str) -> dict[str, str]:
        return account.rule.named(Tally.from_text(text))

    return Entry(
        account=row["account"],
        seq=row["seq"],
        kind=row["kind"],
        reservation=row["reservation"],
        amount=named(row["amount"]),
        settled_after=named(row["settled_after"]),
        held_after=named(row["held_after"]),
        run=row["run"],
        body=json.loads(row["body"]),
        at=row["at"],
        writer=row["writer"],
    )
