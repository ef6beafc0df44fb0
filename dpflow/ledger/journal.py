"""What each kind of entry does: `after` is the only code that knows a kind.

Following an entry calls it again and compares. What each kind does to an account's
(settled, held), for the amount a of its posting and what its charge holds there:

    open, tighten, freeze, unfreeze, refuse, resume, withdraw, checkpoint    nothing
    reserve             held + a (nothing, if the run's reservation held it already)
    settle              held - what the charge holds, settled + a; a is all that it
                        holds, unless `may_return`
    forfeit             held - a, settled + a; a is what the charge holds
    void, seal          held - a; a is what the charge holds
    adjust, repair      settled + a
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import add, le, sub
from typing import Any, NamedTuple

from dpflow.ledger.entry import Entry, JournalError, Sums, canonical
from dpflow.ledger.rows import (
    NONE,
    Charge,
    account_key,
    added_up,
    evidence_key,
    granted_key,
    held_key,
    may_return,
    split,
    term_key,
)
from dpflow.ledger.state import State, charge_keys


class Change(NamedTuple):
    """What an entry says, before it is known what it does.

    Attributes:
        number: Of the entry.
        amounts: What it posts, by account.
    """

    number: int
    kind: str
    charge: str | None
    amounts: Sums
    body: Mapping[str, Any]
    at: str


Rows = dict[str, Any]


def after(state: State, change: Change) -> Rows:
    """Return what each key that an entry names is after it.

    Args:
        state: The state before, with all that `reads` names; it is not changed.
        change: What the entry says.

    Raises:
        JournalError: If no such entry may come next.
    """
    kind = KINDS.get(change.kind)
    if kind is None:
        what = f"no entry is of kind {change.kind!r}"
        raise JournalError(what)
    if change.amounts and not kind.posts:
        what = f"an entry of kind {change.kind} posts nothing"
        raise JournalError(what)
    if foreign := _MEANT.keys() & change.body.keys() - {
        name for name, kinds in _MEANT.items() if change.kind in kinds
    }:
        what = f"an entry of kind {change.kind} says nothing of {min(foreign)!r}"
        raise JournalError(what)
    rows = _accounts(state, change, kind)
    if kind.also is not None:
        kind.also(state, change, rows)
    return rows


def follow(state: State, entry: Entry) -> None:
    """Add an entry to a state; its hash is checked where it is read.

    Args:
        state: The state before, with all that `reads` names; it is changed.
        entry: The next entry.

    Raises:
        JournalError: If it does not follow from what was before.
    """
    change = change_of(entry)
    rows = after(state, change)
    if canonical(rows) != entry.text:
        wrong = [
            key
            for key in sorted({*rows, *entry.rows})
            if canonical(rows.get(key)) != canonical(entry.rows.get(key))
        ]
        key = wrong[0] if wrong else "its text"
        what = (
            f"it says {canonical(entry.rows.get(key)):.200} of {key!r}; the entries "
            f"before it give {canonical(rows.get(key)):.200}"
        )
        raise JournalError(what)
    state.add(entry)


def change_of(entry: Entry) -> Change:
    """Return what an entry says, without what it does."""
    return Change(
        entry.number, entry.kind, entry.charge, entry.amounts, entry.body, entry.at
    )


def reads(state: State, change: Change) -> Iterator[str]:
    """Yield the keys that `after` reads; some are known once others were loaded."""
    yield from map(account_key, change.amounts)
    kind = KINDS.get(change.kind)
    if kind is not None and kind.reads is not None:
        yield from kind.reads(state, change)


def _reserve_reads(state: State, change: Change) -> Iterator[str]:
    body, amounts = change.body, change.amounts
    yield "repairs"
    yield from _charge_reads(state, change)
    yield from (f"book/{split(name)[0]}" for name in amounts)
    yield from (granted_key(str(body["step"]), name) for name in amounts)
    if body.get("key") is not None:
        yield f"release/{body['key']}"
    if body.get("covers") is not None:
        yield f"run/{body['covers']}"
    if "preflight" in body:
        yield from charge_keys(state, body["preflight"]["id"])


def _charge_reads(state: State, change: Change) -> Iterator[str]:
    if change.charge is not None:
        yield from charge_keys(state, change.charge)
    yield from ("repairs", *_evidence(change))
    if change.kind == "adjust":
        yield from (f"book/{split(name)[0]}" for name in change.amounts)


def _book_reads(_: State, change: Change) -> Iterator[str]:
    body = change.body
    books = (body["book"],) if "book" in body else body.get("books", ())
    yield from (f"book/{book}" for book in books)
    if "term" in body:
        yield term_key(str(body["book"]), int(body["term"]["number"]))
    yield from (f"claim/{name}" for name in body.get("claims", ()))


def _repair_reads(state: State, change: Change) -> Iterator[str]:
    yield "repairs"
    yield from _book_reads(state, change)


def _refuse_reads(_: State, change: Change) -> Iterator[str]:
    yield from (f"book/{split(name)[0]}" for name in change.body["accounts"])
    yield from (f"run/{name}" for name in change.body.get("runs", ()))


# Accounts


def _accounts(state: State, change: Change, kind: Kind) -> Rows:
    """Return the accounts that an entry moves, as they are after it."""
    held = NONE if kind.ends is None else _open_charge(state, change).held
    # What a step draws from its run's reservation is held already.
    holds = kind.holds and "preflight" not in change.body
    rows: Rows = {}
    for name, amount in change.amounts.items():
        row = state.row(account_key(name)) or [(), *[(0,) * len(amount)] * 2]
        _, done, holding, *flags = row
        if holds:
            holding = [*map(add, holding, amount)]
        elif kind.ends:
            holding = [*map(sub, holding, held.get(name, ()))]
        if kind.settles:
            done = [*map(add, done, amount)]
        if {len(row[1]), len(holding)} != {len(amount)} or min(*holding, *amount) < 0:
            what = f"{[*holding]} would be held on account {name!r}"
            raise JournalError(what)
        noted = _noted(change, name, flags[0] if flags else NONE)
        rows[account_key(name)] = [amount, done, holding, *([noted] if noted else [])]
    return rows


def _noted(change: Change, name: str, flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an account says beside its sums."""
    if name in change.body.get("overdrawn", ()):
        flags = {**flags, "overdrawn": True}
    if told := change.body.get("told", NONE).get(name):
        now = dict.fromkeys(told, change.number)
        flags = {**flags, "told": {**flags.get("told", NONE), **now}}
    return flags


# Charges


def _open_charge(state: State, change: Change) -> Charge:
    charge = state.charge(change.charge or "")
    if charge is None or charge.state != "open":
        found = "nobody made" if charge is None else f"is {charge.state}"
        what = f"it is about charge {change.charge}, which {found}"
        raise JournalError(what)
    return charge


def _reserve(state: State, change: Change, rows: Rows) -> None:
    """Begin a charge."""
    name, body, amounts = change.charge, change.body, change.amounts
    if name is None or state.row(f"charge/{name}") is not None or not amounts:
        what = f"it reserves for charge {name}, which was made before, or is none"
        raise JournalError(what)
    key, covers = body.get("key"), body.get("covers")
    rows[f"charge/{name}"] = {
        "state": "open",
        "owner": str(body["owner"]),
        "key": key,
        "run": covers,
        "repairs": state.repairs,
    }
    if "preflight" in body:
        _draw(state, body["preflight"]["id"], amounts, rows)
    if covers is not None:
        run = _run(state, covers)
        rows[f"run/{covers}"] = {**run, "reservation": name, "unheld": None}
        rows |= {held_key(name, account): a for account, a in amounts.items()}
    if key is not None:
        rows[f"release/{key}"] = {"charge": name, "state": "claimed", "digest": None}
    for account, amount in amounts.items():
        place = granted_key(str(body["step"]), account)
        before = state.row(place)
        if not any(amount):
            continue
        most = amount if before is None else tuple(map(max, before, amount))
        if before is None or [*most] != [*before]:
            rows[place] = most
    _note_flow(state, change, rows)


def _note_flow(state: State, change: Change, rows: Rows) -> None:
    """Note a flow that is charged for the first time in the newest term."""
    flow = change.body.get("flow")
    for book in dict.fromkeys(split(name)[0] for name in change.amounts):
        found = state.book(book)
        if flow is not None and flow not in found.flows:
            rows[f"book/{book}"] = _book(
                state, book, flows=sorted({*found.flows, flow})
            )


def _draw(state: State, reservation: str, amounts: Sums, rows: Rows) -> None:
    """Take what a step holds now out of what its run's reservation holds."""
    whole = state.charge(reservation)
    if whole is None or whole.state != "open" or whole.covers is None:
        what = f"charge {reservation} is no open run reservation"
        raise JournalError(what)
    for name, amount in amounts.items():
        if not any(amount):
            continue
        left = tuple(map(sub, whole.held.get(name, (-1,) * len(amount)), amount))
        if min(left) < 0:
            what = f"it draws {list(amount)} of {list(whole.held.get(name, ()))}"
            raise JournalError(what)
        rows[held_key(reservation, name)] = left


def _end(state: State, change: Change, rows: Rows) -> None:
    """End a charge."""
    kind, amounts, body = change.kind, change.amounts, change.body
    charge = _open_charge(state, change)
    held, covers = charge.held, charge.covers
    if held.keys() != amounts.keys():
        what = f"it ends charge {charge.id} on some of its accounts only"
        raise JournalError(what)
    if (kind, covers is None) in (("seal", True), ("settle", False)):
        # The rest of a run reservation returns, for nothing ran under it.
        what = f"a {kind} is no end of charge {charge.id}"
        raise JournalError(what)
    repaired = covers is not None and charge.repairs != state.repairs
    drawn = kind == "void" and held != charge.made.amounts
    if drawn or (repaired and kind in ("void", "seal")):
        what = "it returns a run reservation of which something was drawn, perhaps"
        raise JournalError(what)
    less = kind == "settle" and may_return(body, charge.added)
    for name, amount in amounts.items():
        whole = held[name]
        if amount != whole and not (less and all(map(le, amount, whole))):
            what = f"it ends a charge that holds {list(whole)} with {list(amount)}"
            raise JournalError(what)
    before = state.row(f"charge/{charge.id}")
    rows[f"charge/{charge.id}"] = {**before, "state": KINDS[kind].ends}
    if covers is not None:
        for name, amount in held.items():
            rows[held_key(charge.id, name)] = (0,) * len(amount)
    if charge.key is not None:
        _end_release(state, change, charge, rows)


def _end_release(state: State, change: Change, charge: Charge, rows: Rows) -> None:
    """Keep the digest of an output, or let go of its key."""
    key = f"release/{charge.key}"
    kept = state.row(key)
    if kept is None or kept["charge"] != charge.id:
        return
    if change.kind == "settle" and change.body["outcome"] == "completed":
        digest = change.body.get("digest")
        rows[key] = {**kept, "state": "settled", "digest": digest}
    elif kept["state"] == "claimed":
        rows[key] = {**kept, "state": "free"}


def _adjust(state: State, change: Change, rows: Rows) -> None:
    """Charge what an operator says: of a step, or of prior spending."""
    if change.charge is not None:
        charge, row = state.charge(change.charge), state.row(f"charge/{change.charge}")
        if charge is None or charge.covers is not None:
            what = f"it corrects charge {change.charge}, which no step made"
            raise JournalError(what)
        added = added_up(charge.added, change.amounts)
        rows[f"charge/{change.charge}"] = {**row, "added": added}
    _note_flow(state, change, rows)
    for key in _evidence(change):
        if state.row(key) is not None:
            what = f"{key} was charged before"
            raise JournalError(what)
        rows[key] = {"entry": change.number}


def _evidence(change: Change) -> Iterator[str]:
    """Yield the keys of evidence, in the terms of the accounts that it charges."""
    digest = change.body.get("evidence")
    if digest is not None:
        for book, number in dict.fromkeys(split(name)[:2] for name in change.amounts):
            yield evidence_key(f"{book}#{number}", str(digest))


# Books, runs, releases


def _book(state: State, name: str, **changed: Any) -> dict[str, Any]:
    book = state.book(name)
    row = {"term": book.terms, "frozen": book.frozen, "flows": list(book.flows)}
    return {**row, **changed}


def _pin(state: State, change: Change, rows: Rows) -> None:
    """Begin a term, or tighten what it pins."""
    name, facts, book = str(change.body["book"]), change.body["term"], {}
    number, terms = facts["number"], state.book(name).terms
    if number != terms + (change.kind == "open") or terms < 0:
        what = f"term {number} of {name!r} comes after term {terms}"
        raise JournalError(what)
    if change.kind == "open":
        book = {"term": number, "flows": []}
    rows[term_key(name, number)] = {}
    rows[f"book/{name}"] = _book(state, name, **book)
    for source, said in change.body.get("claims", NONE).items():
        by = dict(state.row(f"claim/{source}") or {})
        by.pop(name, None)
        rows[f"claim/{source}"] = by if said is None else {**by, name: said}


def _freeze(state: State, change: Change, rows: Rows) -> None:
    name = str(change.body["book"])
    frozen = change.body["frozen"] if change.kind == "freeze" else None
    rows[f"book/{name}"] = _book(state, name, frozen=frozen)


def _name_books(state: State, books: Iterable[str], rows: Rows) -> None:
    rows |= {f"book/{book}": _book(state, book) for book in books}


def _resume(state: State, change: Change, rows: Rows) -> None:
    _name_books(state, change.body["books"], rows)


def _run(state: State, name: str) -> dict[str, Any]:
    found = state.run(name)._asdict()
    del found["id"]
    return found


def _refuse(state: State, change: Change, rows: Rows) -> None:
    body, charged = change.body, change.body.get("flow_run")
    _name_books(state, dict.fromkeys(split(n)[0] for n in body["accounts"]), rows)
    for name in body.get("runs", ()):
        run = _run(state, name)
        run["refusals"] += 1
        if name == charged:
            halted = (*run["halted"], *body.get("halts", ()))
            run["halted"] = [*dict.fromkeys(halted)]
        if name == body.get("covers"):
            run["unheld"] = change.number
        rows[f"run/{name}"] = run


def _withdraw(state: State, change: Change, rows: Rows) -> None:
    key = f"release/{change.body['release']}"
    kept = state.row(key)
    if kept is None or kept["state"] != "settled":
        what = f"there is no {key} to withdraw"
        raise JournalError(what)
    rows[key] = {**kept, "state": "withdrawn"}


def _repair(state: State, change: Change, rows: Rows) -> None:
    number = change.body["repairs"]
    if type(number) is not int or number <= state.repairs:
        what = f"it is repair {number}, and there were {state.repairs}"
        raise JournalError(what)
    rows["repairs"] = number
    for book in change.body.get("books", ()):
        flows = {*state.book(book).flows, *change.body["flows"].get(book, ())}
        rows[f"book/{book}"] = _book(state, book, flows=sorted(flows))


class Kind(NamedTuple):
    """What the entries of a kind do.

    Attributes:
        also: Changes what is no account.
        reads: Yields the keys that `also` reads.
        holds: Whether it holds what it posts.
        settles: Whether it settles what it posts.
        ends: The state of the charge that it ends.
        posts: Whether it may post amounts.
        decides: Whether it is a person's decision that moves no budget.
        told: Whether the witness is told of it. What ends a charge raises no use.
        often: Whether every step writes one; the others are found by an index.
        operator: Whether only an operator may write it.
    """

    also: Callable[[State, Change, Rows], None] | None = None
    reads: Callable[[State, Change], Iterator[str]] | None = None
    holds: bool = False
    settles: bool = False
    ends: str | None = None
    posts: bool = False
    decides: bool = False
    told: bool = False
    often: bool = False
    operator: bool = False

    @property
    def by_hand(self) -> bool:
        """Whether it charges without a step."""
        return self.settles and self.ends is None


#: The only list of kinds; SQL takes them from here.
KINDS: Mapping[str, Kind] = {
    "open": Kind(_pin, _book_reads, decides=True, told=True, operator=True),
    "tighten": Kind(_pin, _book_reads, decides=True, told=True, operator=True),
    "freeze": Kind(_freeze, _book_reads, decides=True, told=True),
    "unfreeze": Kind(_freeze, _book_reads, decides=True, told=True, operator=True),
    "withdraw": Kind(_withdraw, lambda _, c: iter([f"release/{c.body['release']}"])),
    "checkpoint": Kind(told=True, operator=True),
    "resume": Kind(_resume, _book_reads),
    "refuse": Kind(_refuse, _refuse_reads),
    "reserve": Kind(
        _reserve, _reserve_reads, holds=True, posts=True, told=True, often=True
    ),
    "settle": Kind(
        _end, _charge_reads, settles=True, ends="settled", posts=True, often=True
    ),
    "void": Kind(_end, _charge_reads, ends="void", posts=True, often=True),
    "forfeit": Kind(_end, _charge_reads, settles=True, ends="forfeited", posts=True),
    "seal": Kind(_end, _charge_reads, ends="sealed", posts=True, often=True),
    "adjust": Kind(
        _adjust, _charge_reads, settles=True, posts=True, told=True, operator=True
    ),
    "repair": Kind(
        _repair, _repair_reads, settles=True, posts=True, told=True, operator=True
    ),
}

_HOLDING = frozenset({"reserve"})
#: Facts by which `after` changes rows, and the kinds that may say them.
_MEANT: Mapping[str, frozenset[str]] = {
    "claims": frozenset({"open", "tighten"}),
    "covers": frozenset({"reserve", "refuse"}),
    "evidence": frozenset({"adjust"}),
    "frozen": frozenset({"freeze"}),
    "halts": frozenset({"refuse"}),
    "key": _HOLDING,
    "owner": _HOLDING,
    "overdrawn": frozenset({"adjust", "repair"}),
    "preflight": _HOLDING,
    "repairs": frozenset({"repair"}),
    "runs": frozenset({"refuse"}),
    "told": _HOLDING,
}
