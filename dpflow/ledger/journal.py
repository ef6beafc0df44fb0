"""The journal of a book: its entries, their hashes, and what each kind of them does.

A book is what is locked, frozen and given terms as one: a dataset or a population. Its
entries are numbered and chained by hashes. The ledger's rows are nothing but the fold
of `follow` over all entries; storing, verifying and showing use this file and no other
to know what an entry means. It needs the standard library only, so that an auditor can
run it alone.

What each kind does to an account's (settled, held), for the amount a of its posting
and what its charge holds there:

    open, tighten, freeze, unfreeze, refuse, adopt, withdraw, checkpoint     nothing
    reserve                     held + a (nothing, if a preflight held it already)
    settle                      held - what the charge holds, settled + a; a is all that
                                it holds, unless `may_return`
    forfeit                     held - a, settled + a; a is what the charge holds
    void, seal                  held - a; a is what the charge holds
    amend, prior, repair        settled + a
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import add, le, sub
from typing import Any, NamedTuple, cast

from dpflow.ledger.entry import (
    Columns,
    Entry,
    Posting,
    Written,
    canonical,
    entry_hash,
)
from dpflow.ledger.rows import (
    EPOCH,
    Account,
    Amounts,
    Book,
    Changes,
    Charge,
    Claim,
    Epoch,
    JournalError,
    Key,
    MostGranted,
    Release,
    Rows,
    Sums,
    Term,
    added_up,
    book_of,
    charge_of,
    epoch_of,
    flow_mark,
    name_in_part,
    name_of_term,
    run_of,
)

_NONE: Mapping[str, Any] = {}


def next_entry(
    rows: Rows,
    book: str,
    kind: str,
    amounts: Sums,
    body: Mapping[str, Any],
    *,
    charge: str | None,
    at: str,
    writer: str,
) -> tuple[Entry, Changes]:
    """Return the next entry of a book, and the rows that it changes.

    Args:
        rows: The state before; it is not changed.
        book: Name of the book.
        kind: Of the entry.
        amounts: What it posts, by account.
        body: Further facts, JSON-able.
        charge: The charge that it is about.
        at: The time, a label.
        writer: Who writes.

    Raises:
        JournalError: If no such entry may come next.
    """
    head = book_of(rows, book)
    number, amounts = head.number + 1, dict(sorted(amounts.items()))
    moved = _posted(rows, (book, number), kind, amounts, body=body, charge=charge)
    postings = {}
    for name, account in zip(amounts, moved.values(), strict=True):
        amount, left = amounts[name], account.held
        if len(left) != len(amount) or min(left) < 0:
            what = f"{list(left)} would be held on account {name!r}"
            raise JournalError(what)
        postings[name] = Posting(amount, account.settled, left)
    told, text = canonical(postings), canonical(body)
    columns = Columns(book, number, kind, charge, told, text, at, writer)
    whole = entry_hash(head.hash, columns)
    entry = Written(book, number, kind, charge, postings, body, at, writer, whole)
    entry.texts, entry.previous = (told, text), head.hash
    return entry, _changes(rows, entry, head, amounts, moved)


def follow(rows: Rows, entry: Entry) -> Changes:
    """Return the rows that an entry changes; this alone says what an entry means.

    Args:
        rows: The state before the entry; it is not changed.
        entry: The next entry of its book. Its hash is checked where it is read.

    Raises:
        JournalError: If it does not follow from what was before.
    """
    book, number, kind, charge, postings, body, _, _, _ = entry
    head = book_of(rows, book)
    if number != head.number + 1:
        what = f"entry {head.number + 1} is missing; {number} is the next"
        raise JournalError(what)
    amounts = {name: posting[0] for name, posting in postings.items()}
    moved = _posted(rows, (book, number), kind, amounts, body=body, charge=charge)
    # No posting that was read holds less than nothing: that has no canonical form.
    for found, posting in zip(moved.values(), postings.values(), strict=True):
        if found[3] != posting[1] or found[4] != posting[2]:
            what = (
                f"it says settled {list(posting.settled)} and held "
                f"{list(posting.held)} of account {found.id!r}; the entries give "
                f"{list(found.settled)} and {list(found.held)}"
            )
            raise JournalError(what)
    return _changes(rows, entry, head, amounts, moved)


def _posted(
    rows: Rows,
    place: tuple[str, int],
    kind: str,
    amounts: Sums,
    *,
    body: Mapping[str, Any],
    charge: str | None,
) -> dict[Key, Account]:
    """Return the accounts that an entry moves, as they are after it."""
    rule = _rule_of(kind, amounts)
    ends, settles = rule.ends is not None, rule.settles
    held = charge_of(rows, charge).held if ends else _NONE
    # What a step draws from its run's preflight is held already.
    holds = rule.holds and "preflight" not in body
    book, number = place
    mine = f"{book}#"
    moved: dict[Key, Account] = {}
    for name, amount in amounts.items():
        key = ("account", name)
        before = rows.get(key)
        if isinstance(before, Account):
            _, _, _, done, holding, above, told = before
        else:
            done = holding = (0,) * len(amount)
            above, told = False, _NONE
        if len(done) != len(amount) or not name.startswith(mine):
            raise _misplaced(name, mine)
        if holds:
            holding = tuple(map(add, holding, amount))
        elif ends:
            holding = tuple(map(sub, holding, held.get(name, ())))
        if settles:
            done = tuple(map(add, done, amount))
        moved[key] = Account(name, book, number, done, holding, above, told)
    return _noted(moved, body) if "overdrawn" in body or "told" in body else moved


def _rule_of(kind: str, amounts: Sums) -> Kind:
    rule = KINDS.get(kind)
    if rule is None:
        what = f"no entry is of kind {kind!r}"
        raise JournalError(what)
    if amounts and not rule.posts:
        what = f"an entry of kind {kind} posts nothing"
        raise JournalError(what)
    return rule


def _misplaced(name: str, mine: str) -> JournalError:
    if not name.startswith(mine):
        return JournalError(f"account {name!r} belongs to another book")
    return JournalError(f"account {name!r} has another number of components")


def _noted(moved: Mapping[Key, Account], body: Mapping[str, Any]) -> dict[Key, Account]:
    """Note what an entry says of accounts beside their sums."""
    overdrawn, told = body.get("overdrawn", ()), body.get("told", _NONE)
    return {
        key: account._replace(
            overdrawn=account.overdrawn or account.id in overdrawn,
            told={
                **account.told,
                **dict.fromkeys(told.get(account.id, ()), account.entry),
            },
        )
        for key, account in moved.items()
    }


# What an entry changes, once its sums are known


def _changes(
    rows: Rows, entry: Entry, head: Book, amounts: Sums, moved: Mapping[Key, Account]
) -> Changes:
    """Add to the accounts that an entry moves whatever else it changes."""
    changes, also = cast("Changes", moved), KINDS[entry.kind].also
    if also is not None:
        also(rows, entry, amounts, changes)
    if "claims" in entry.body:
        _claim(rows, entry, changes)
    changes["book", entry.book] = _moved_book(entry, head)
    return changes


def _reserve(rows: Rows, entry: Entry, amounts: Sums, changes: Changes) -> None:
    """Begin a charge, or go on with it in another of its books."""
    book, name, body = entry.book, entry.charge, entry.body
    if name is None:
        what = "it reserves for no charge"
        raise JournalError(what)
    before, place = rows.get(("charge", name)), (entry.number, 0)
    if not isinstance(before, Charge):
        covers, key = body.get("covers"), body.get("key")
        epoch, places = int(body.get("epoch", 0)), {book: place}
        held = (amounts, _NONE)
        charge = Charge(name, "open", body["owner"], places, *held, covers, key, epoch)
    elif before.state != "open" or book in before.places:
        what = f"charge {name} was made before"
        raise JournalError(what)
    else:
        both = {**before.places, book: place}
        charge = before._replace(places=both, held={**before.held, **amounts})
    changes["charge", name] = charge
    if "preflight" in body:
        _draw(rows, body["preflight"]["id"], amounts, changes)
    if charge.covers is not None:
        run = run_of(rows, charge.covers)
        changes["run", run.id] = run._replace(preflight=name, unheld=None)
    if charge.key is not None:
        place_of_key = ("release", charge.key)
        kept = rows.get(place_of_key)
        if not isinstance(kept, Release) or kept.charge != name:
            # The same whichever of the charge's books is followed first.
            first = str(body["accounts"][0]).partition("#")[0]
            changes[place_of_key] = Release(charge.key, name, first, "claimed")
    _note_granted(rows, book, str(body["step"]), amounts, changes)


def _draw(rows: Rows, preflight: str, amounts: Sums, changes: Changes) -> None:
    """Take what a step holds now out of what its run's preflight holds."""
    whole = charge_of(rows, preflight)
    if whole.state != "open" or whole.covers is None:
        what = f"charge {preflight} is no open run reservation"
        raise JournalError(what)
    rest = dict(whole.held)
    for name, amount in amounts.items():
        if not any(amount):
            continue
        left = tuple(map(sub, rest.get(name, (-1,) * len(amount)), amount))
        if min(left) < 0:
            what = f"it draws {list(amount)} of {list(rest.get(name, ()))}"
            raise JournalError(what)
        rest[name] = left
    changes["charge", preflight] = whole._replace(held=rest)


def _note_granted(
    rows: Rows, book: str, step: str, amounts: Sums, changes: Changes
) -> None:
    for name, amount in amounts.items():
        kept = name_in_part(step, name)
        key = ("granted", book, kept)
        known = changes.get(key, rows.get(key))
        most = known.most if isinstance(known, MostGranted) else _NONE
        before = most.get(name)
        if before is None or before != amount:
            highest = amount if before is None else tuple(map(max, before, amount))
            if highest != before:
                changes[key] = MostGranted(book, kept, {**most, name: highest})


def _end(rows: Rows, entry: Entry, _: Sums, changes: Changes) -> None:
    """End a charge in one of its books."""
    book, kind, postings = entry.book, entry.kind, entry.postings
    state = str(KINDS[kind].ends)
    charge = charge_of(rows, entry.charge)
    held = charge.held
    rest: dict[str, Amounts] = {}
    if held.keys() != postings.keys():
        rest = {n: a for n, a in held.items() if not n.startswith(f"{book}#")}
    if charge.state not in ("open", state) or len(rest) == len(held):
        what = f"it ends charge {charge.id}, which is {charge.state}"
        raise JournalError(what)
    if held.keys() - rest.keys() != postings.keys():
        what = f"it ends charge {charge.id} on some of its accounts only"
        raise JournalError(what)
    if (kind, charge.covers is None) in (("seal", True), ("settle", False)):
        # The rest of a preflight returns, for nothing ran under it; a step's never.
        what = f"a {kind} is no end of charge {charge.id}"
        raise JournalError(what)
    less = kind == "settle" and may_return(entry.body, charge.added)
    for name, posting in postings.items():
        amount, whole = posting.amount, held[name]
        if amount != whole and not (less and all(map(le, amount, whole))):
            what = f"it ends a charge that holds {list(whole)} with {list(amount)}"
            raise JournalError(what)
    places = {**charge.places, book: (charge.places[book][0], entry.number)}
    changed = charge._replace(state=state, places=places, held=rest or _NONE)
    changes["charge", charge.id] = changed
    if charge.key is not None:
        _end_release(rows, entry, charge.key, changes)


def may_return(body: Mapping[str, Any], added: Sums = _NONE) -> bool:
    """Say whether a settlement may post less than its charge held.

    Args:
        body: Of the settlement.
        added: What was added to the charge before.
    """
    reported = body["outcome"] == "completed" and "reported" in body and not added
    return reported or body["outcome"] == "void"


def _end_release(rows: Rows, entry: Entry, key: str, changes: Changes) -> None:
    """Keep the digest of an output, or let go of its key."""
    place = ("release", key)
    kept = rows.get(place)
    if not isinstance(kept, Release) or kept.charge != entry.charge:
        return
    if entry.kind == "settle" and entry.body["outcome"] == "completed":
        digest = entry.body.get("digest")
        changes[place] = kept._replace(state="settled", digest=digest)
    elif kept.state == "claimed":
        changes[place] = None


def _adopt(rows: Rows, entry: Entry, _: Sums, changes: Changes) -> None:
    charge = charge_of(rows, entry.charge)
    changes["charge", charge.id] = charge._replace(owner=entry.body["owner"])


def _amend(rows: Rows, entry: Entry, amounts: Sums, changes: Changes) -> None:
    charge = charge_of(rows, entry.charge)
    both = added_up(charge.added, amounts)
    changes["charge", charge.id] = charge._replace(added=both)


def _pin(rows: Rows, entry: Entry, _: Sums, changes: Changes) -> None:
    """Begin a term, or tighten what it pins."""
    facts = entry.body["term"]
    number, terms = facts["number"], book_of(rows, entry.book).terms
    if entry.kind == "open" and number != terms + 1:
        what = f"term {terms + 1} is missing; {number} is the next"
        raise JournalError(what)
    term = Term(entry.book, number, entry.number, facts)
    changes["term", entry.book, str(number)] = term


def _refuse(rows: Rows, entry: Entry, _: Sums, changes: Changes) -> None:
    body, charged = entry.body, entry.body.get("flow_run")
    for name in body.get("runs", ()):
        run = run_of(rows, name)
        place = (entry.book, entry.number, name == charged)
        halts = body.get("halts", ()) if name == charged else ()
        if name == body.get("covers"):
            run = run._replace(unheld=(entry.book, entry.number))
        changes["run", name] = run._replace(
            refused=(*run.refused, place),
            halted=tuple(dict.fromkeys((*run.halted, *halts))),
        )


def _withdraw(rows: Rows, entry: Entry, _: Sums, changes: Changes) -> None:
    key = entry.body["release"]
    kept = rows.get(("release", key))
    if not isinstance(kept, Release) or kept.state != "settled":
        what = f"there is no release {key} to withdraw"
        raise JournalError(what)
    changes["release", key] = kept._replace(state="withdrawn")


def _repair(rows: Rows, entry: Entry, _: Sums, changes: Changes) -> None:
    changes[EPOCH] = Epoch(max(epoch_of(rows), int(entry.body.get("epoch", 0))))


def _claim(rows: Rows, entry: Entry, changes: Changes) -> None:
    for name, said in entry.body["claims"].items():
        known = rows.get(("claim", name))
        by = dict(known.by) if isinstance(known, Claim) else {}
        by.pop(entry.book, None)
        if said is not None:
            by[entry.book] = said
        changes["claim", name] = Claim(name, by)


def _moved_book(entry: Entry, head: Book) -> Book:
    """Return a book with the end of its journal, and what holds for all of it."""
    kind, body, (_, _, _, frozen, ran, terms) = entry.kind, entry.body, head
    more = KINDS[kind].ran
    if more:
        ran = dict(ran)
        for term in {*map(name_of_term, entry.postings)}:
            ran[term] = ran.get(term, 0) + more
        if kind == "reserve" and body.get("flow") is not None:
            ran[flow_mark(terms, body["flow"])] = 1
    elif kind == "freeze":
        frozen = {**body["frozen"], "at": entry.at}
    elif kind == "unfreeze":
        frozen = None
    elif kind == "open":
        terms = int(body["term"]["number"])
    return Book(entry.book, entry.number, entry.hash, frozen, ran, terms)


# The kinds


class Kind(NamedTuple):
    """What an entry of a kind does, and who hears of it.

    Attributes:
        also: Changes rows besides the accounts' and the book's.
        holds: Whether its amount is held.
        settles: Whether its amount is added to what is settled.
        ends: The state that its charge has afterwards, if it ends one.
        ran: By how much it changes the number of charges that may have read data. No
            body runs under a preflight, so that a seal takes it back as a void does.
        posts: Whether it may have postings.
        decides: Whether it is a person's decision that moves no budget.
        told: Whether the witness is told of it. What ends a charge only ever lowers
            or keeps what is used: a ledger that forgot it promises nothing more.
    """

    also: Callable[[Rows, Entry, Sums, Changes], None] | None = None
    holds: bool = False
    settles: bool = False
    ends: str | None = None
    ran: int = 0
    posts: bool = True
    decides: bool = False
    told: bool = False

    @property
    def by_hand(self) -> bool:
        """Whether it charges without a step."""
        return self.settles and self.ends is None


#: The only list of kinds.
KINDS: Mapping[str, Kind] = {
    "open": Kind(_pin, posts=False, decides=True, told=True),
    "tighten": Kind(_pin, posts=False, decides=True, told=True),
    "freeze": Kind(posts=False, decides=True, told=True),
    "unfreeze": Kind(posts=False, decides=True, told=True),
    "adopt": Kind(_adopt, posts=False, told=True),
    "withdraw": Kind(_withdraw, posts=False),
    "checkpoint": Kind(posts=False, told=True),
    "resume": Kind(posts=False),
    "refuse": Kind(_refuse),
    "reserve": Kind(_reserve, holds=True, ran=1, told=True),
    "settle": Kind(_end, settles=True, ends="settled"),
    "void": Kind(_end, ends="void", ran=-1),
    "forfeit": Kind(_end, settles=True, ends="forfeited"),
    "seal": Kind(_end, ends="sealed", ran=-1),
    "amend": Kind(_amend, settles=True, ran=1, told=True),
    "prior": Kind(settles=True, ran=1, told=True),
    "repair": Kind(_repair, settles=True, ran=1, told=True),
}
