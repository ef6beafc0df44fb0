"""What each kind of entry does: `after` is the only code that knows a kind.

Following an entry calls it again and compares. What each kind does to an account's
(settled, held), for the amount a of its posting and what its charge holds there:

    open, tighten, freeze, unfreeze, refuse, withdraw, pay
                        nothing
    reserve             held + a
    settle              held - what the charge holds, settled + a; a is all that it
                        holds, unless `may_return`
    forfeit             held - a, settled + a; a is what the charge holds
    void                held - a; a is what the charge holds
    adjust, repair      settled + a
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from operator import add, gt, le, sub
from typing import Any, NamedTuple

from dpflow.ledger.entry import ACCOUNT, Entry, JournalError, Sums, canonical
from dpflow.ledger.rows import (
    NONE,
    Charge,
    added_up,
    evidence_keys,
    granted_key,
    may_return,
    split,
    term_key,
)
from dpflow.ledger.state import State

Rows = dict[str, Any]


def after(state: State, draft: Entry) -> Rows:
    """Return what each key that an entry names is after it.

    Args:
        state: The state before; it is not changed.
        draft: The entry; its rows are not read.

    Raises:
        JournalError: If no such entry may come next.
    """
    kind = KINDS.get(draft.kind)
    if kind is None:
        what = f"no entry is of kind {draft.kind!r}"
        raise JournalError(what)
    if draft.amounts and not kind.posts:
        what = f"an entry of kind {draft.kind} posts nothing"
        raise JournalError(what)
    if foreign := (_FACTS - kind.facts) & draft.body.keys():
        what = f"an entry of kind {draft.kind} says nothing of {min(foreign)!r}"
        raise JournalError(what)
    charge = None if kind.ends is None else _open_charge(state, draft)
    rows = _accounts(state, draft, kind, NONE if charge is None else charge.held)
    if charge is not None:
        _end(state, draft, charge, rows)
    elif kind.also is not None:
        kind.also(state, draft, rows)
    return rows


def follow(state: State, draft: Entry) -> Entry:
    """Add an entry to a state, and return it with the rows that were computed.

    Args:
        state: The state before; it is changed.
        draft: The next entry. Its hash was checked where it was read.

    Raises:
        JournalError: If it does not follow from what was before.
    """
    rows = after(state, draft)
    if canonical(rows) != draft.columns.rows:
        said = json.loads(draft.columns.rows)
        wrong = (
            key
            for key in sorted({*rows, *said})
            if canonical(rows.get(key)) != canonical(said.get(key))
        )
        key = next(wrong, "its text")
        what = (
            f"it says {canonical(said.get(key)):.200} of {key!r}; the entries "
            f"before it give {canonical(rows.get(key)):.200}"
        )
        raise JournalError(what)
    entry: Entry = tuple.__new__(Entry, (*draft[:7], rows, *draft[8:]))
    state.add(entry)
    return entry


# Accounts


def _accounts(state: State, draft: Entry, kind: Kind, held: Sums) -> Rows:
    """Return the accounts that an entry moves, as they are after it."""
    notes = "alerts" in draft.body or "overdrawn" in draft.body
    rows: Rows = {}
    for name, amount in draft.amounts.items():
        key = ACCOUNT + name
        _, done, holding, *flags = state.row(key) or [(0,) * len(amount)] * 3
        if kind.holds:
            holding = [*map(add, holding, amount)]
        elif kind.ends:
            holding = [*map(sub, holding, held.get(name, ()))]
        if kind.settles:
            done = [*map(add, done, amount)]
        if not len(done) == len(holding) == len(amount) or min(*holding, *amount) < 0:
            what = f"{[*holding]} would be held on account {name!r}"
            raise JournalError(what)
        if notes and (noted := _noted(draft, name, flags[0] if flags else NONE)):
            flags = [noted]
        rows[key] = [amount, done, holding, *flags]
    return rows


def _noted(draft: Entry, name: str, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of an account in addition to its sums."""
    if name in draft.body.get("overdrawn", ()):
        flags = {**flags, "overdrawn": True}
    if alerts := draft.body.get("alerts", NONE).get(name):
        now = dict.fromkeys(alerts, draft.number)
        flags = {**flags, "alerts": {**flags.get("alerts", NONE), **now}}
    return flags


# Charges


def _open_charge(state: State, draft: Entry) -> Charge:
    charge = state.charge(draft.charge or "")
    if charge is None or charge.state != "open":
        found = "does not exist" if charge is None else f"is {charge.state}"
        what = f"it is about charge {draft.charge}, which {found}"
        raise JournalError(what)
    return charge


def _reserve(state: State, draft: Entry, rows: Rows) -> None:
    """Begin a charge."""
    name, body, amounts = draft.charge, draft.body, draft.amounts
    if name is None or state.row(f"charge/{name}") is not None or not amounts:
        what = f"it reserves for charge {name}, which exists, or has no name or amounts"
        raise JournalError(what)
    key = body.get("key")
    # The last two fields are a part of the row's form; no decision reads them.
    rows[f"charge/{name}"] = {
        "state": "open",
        "owner": str(body["owner"]),
        "key": key,
        "run": None,
        "repairs": state.repairs,
    }
    if key is not None:
        rows[f"release/{key}"] = {"charge": name, "state": "claimed", "digest": None}
    for account, amount in amounts.items():
        place = granted_key(str(body["step"]), account)
        before = state.row(place)
        if before is None and any(amount):
            rows[place] = amount
        elif before not in (None, amount) and any(map(gt, amount, before)):
            rows[place] = [*map(max, amount, before)]
    _note_flow(state, draft, rows)


def _note_flow(state: State, draft: Entry, rows: Rows) -> None:
    """Note a flow that is charged for the first time in the newest term."""
    flow = draft.body.get("flow")
    for book in {split(name)[0] for name in draft.amounts}:
        if flow is not None and flow not in state.book(book).flows:
            _name_book(state, book, rows, [flow])


def _end(state: State, draft: Entry, charge: Charge, rows: Rows) -> None:
    """End a charge."""
    kind, amounts, held = draft.kind, draft.amounts, charge.held
    if held.keys() != amounts.keys():
        what = f"it ends charge {charge.id} on some of its accounts only"
        raise JournalError(what)
    less = kind == "settle" and may_return(draft.body, charge.added)
    for name, amount in amounts.items():
        whole = held[name]
        if amount != whole and not (less and all(map(le, amount, whole))):
            what = f"it ends a charge that holds {list(whole)} with {list(amount)}"
            raise JournalError(what)
    before = state.row(f"charge/{charge.id}")
    rows[f"charge/{charge.id}"] = {**before, "state": KINDS[kind].ends}
    if charge.key is not None:
        _end_release(state, draft, charge, rows)


def _end_release(state: State, draft: Entry, charge: Charge, rows: Rows) -> None:
    """Keep the digest of an output, or let go of its key."""
    key = f"release/{charge.key}"
    kept = state.row(key)
    if kept is None or kept["charge"] != charge.id:
        return
    if draft.kind == "settle" and draft.body["outcome"] == "completed":
        digest = draft.body.get("digest")
        rows[key] = {**kept, "state": "settled", "digest": digest}
    elif kept["state"] == "claimed":
        rows[key] = {**kept, "state": "free"}


def _adjust(state: State, draft: Entry, rows: Rows) -> None:
    """Charge what an operator says: of a step, or of prior spending."""
    if draft.charge is not None:
        charge, row = state.charge(draft.charge), state.row(f"charge/{draft.charge}")
        if charge is None:
            what = f"it corrects charge {draft.charge}, which does not exist"
            raise JournalError(what)
        added = added_up(charge.added, draft.amounts)
        rows[f"charge/{draft.charge}"] = {**row, "added": added}
    _note_flow(state, draft, rows)
    for key in evidence_keys(draft.body.get("evidence"), draft.amounts):
        if state.row(key) is not None:
            what = f"{key} was charged before"
            raise JournalError(what)
        rows[key] = {"entry": draft.number}


# Books, runs, releases


def _name_book(
    state: State, name: str, rows: Rows, flows: Iterable[str] = (), **changed: Any
) -> None:
    """Write what a book is after an entry, with further flows that were charged."""
    book = state.book(name)
    row = {"term": book.terms, "frozen": book.frozen}
    rows[f"book/{name}"] = {**row, "flows": sorted({*book.flows, *flows}), **changed}


def _pin(state: State, draft: Entry, rows: Rows) -> None:
    """Begin a term, or tighten what it pins."""
    name, opens, changed = str(draft.body["book"]), draft.kind == "open", {}
    number, terms = draft.body["term"]["number"], state.book(name).terms
    if number != terms + opens:
        what = f"term {number} of {name!r} comes after term {terms}"
        raise JournalError(what)
    if opens:
        changed = {"term": number, "flows": []}
    rows[term_key(name, number)] = {}
    _name_book(state, name, rows, **changed)
    pinned = draft.body["term"]["pinned"]
    if (source := pinned.get("source")) is not None:
        claims = {**state.claimed(source), name: pinned.get("population", "")}
        rows[f"claim/{source}"] = claims


def _freeze(state: State, draft: Entry, rows: Rows) -> None:
    frozen = draft.body["frozen"] if draft.kind == "freeze" else None
    _name_book(state, str(draft.body["book"]), rows, frozen=frozen)


def _name_books(state: State, draft: Entry, rows: Rows) -> None:
    for book in draft.body["books"]:
        _name_book(state, book, rows)


def _run(state: State, name: str) -> dict[str, Any]:
    found = state.run(name)._asdict()
    del found["id"]
    return found


def _refuse(state: State, draft: Entry, rows: Rows) -> None:
    body, charged = draft.body, draft.body.get("flow_run")
    for account in body["accounts"]:
        _name_book(state, split(account)[0], rows)
    for name in body.get("runs", ()):
        run = _run(state, name)
        run["refusals"] += 1
        if name == charged:
            halted = (*run["halted"], *body.get("halts", ()))
            run["halted"] = [*dict.fromkeys(halted)]
        rows[f"run/{name}"] = run


def _withdraw(state: State, draft: Entry, rows: Rows) -> None:
    key = f"release/{draft.body['release']}"
    kept = state.row(key)
    if kept is None or kept["state"] != "settled":
        what = f"there is no {key} to withdraw"
        raise JournalError(what)
    rows[key] = {**kept, "state": "withdrawn"}
    _name_books(state, draft, rows)


def _repair(state: State, draft: Entry, rows: Rows) -> None:
    number = draft.body["repairs"]
    if type(number) is not int or number <= state.repairs:
        what = f"it is repair {number}, and there were {state.repairs}"
        raise JournalError(what)
    rows["repairs"] = number
    for book, flows in draft.body["flows"].items():
        _name_book(state, book, rows, flows)
    for name, newest in draft.body.get("people", NONE).items():
        rows[f"people/{name}"] = {**state.row(f"people/{name}"), "newest": newest}


def _pay(state: State, draft: Entry, rows: Rows) -> None:
    """Note the newest step for which the people of an account were charged."""
    name, charge = str(draft.body["people"]), _open_charge(state, draft)
    row, paid = state.row(f"people/{name}"), charge.made.amounts.get(name, ())
    # The first step makes the store, which its charge pays.
    if not (any(paid) if row is None else paid):
        what = f"it charges people of {name!r}, whose budgets no charge paid"
        raise JournalError(what)
    first = charge.id if row is None else row["first"]
    rows[f"people/{name}"] = {"first": first, "newest": charge.id}


class Kind(NamedTuple):
    """What the entries of a kind do.

    Attributes:
        also: Changes the keys that are no accounts.
        facts: Names of the facts by which `also` changes keys.
        holds: Whether it holds what it posts.
        settles: Whether it settles what it posts.
        ends: The state of the charge that it ends.
        posts: Whether it may post amounts.
        decides: Whether it is a person's decision that moves no budget.
        witnessed: Whether the witness gets a line of it. What ends a charge raises no
            use.
        operator: Whether only an operator may write it.
    """

    also: Callable[[State, Entry, Rows], None] | None = None
    facts: frozenset[str] = frozenset()
    holds: bool = False
    settles: bool = False
    ends: str | None = None
    posts: bool = False
    decides: bool = False
    witnessed: bool = False
    operator: bool = False

    @property
    def by_hand(self) -> bool:
        """Whether it charges without a step."""
        return self.settles and self.ends is None


_TERM = Kind(_pin, decides=True, witnessed=True, operator=True)
_END = Kind(posts=True)
_BY_HAND = Kind(posts=True, settles=True, witnessed=True, operator=True)

#: The only list of kinds; SQL takes those of operators from here.
KINDS: Mapping[str, Kind] = {
    "open": _TERM,
    "tighten": _TERM,
    "freeze": Kind(_freeze, frozenset({"frozen"}), decides=True, witnessed=True),
    "unfreeze": Kind(_freeze, decides=True, witnessed=True, operator=True),
    "withdraw": Kind(_withdraw),
    "refuse": Kind(_refuse, frozenset({"halts", "runs"})),
    "reserve": Kind(
        _reserve,
        frozenset({"key", "owner", "alerts"}),
        holds=True,
        posts=True,
        witnessed=True,
    ),
    "settle": _END._replace(settles=True, ends="settled", facts=frozenset({"alerts"})),
    "void": _END._replace(ends="void"),
    "forfeit": _END._replace(
        settles=True, ends="forfeited", facts=frozenset({"alerts"})
    ),
    "pay": Kind(_pay, frozenset({"people"}), witnessed=True),
    "adjust": _BY_HAND._replace(
        also=_adjust, facts=frozenset({"alerts", "evidence", "overdrawn"})
    ),
    "repair": _BY_HAND._replace(
        also=_repair, facts=frozenset({"alerts", "overdrawn", "people", "repairs"})
    ),
}
_FACTS = frozenset().union(*(kind.facts for kind in KINDS.values()))
