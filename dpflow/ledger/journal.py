"""The journal of a book: its entries, their hashes, and what each kind of them does.

A book is what is locked, frozen and given terms as one: a dataset or a population. Its
entries are numbered and chained by hashes. The ledger's rows are nothing but the fold
of `follow` over all entries; storing, verifying and showing use this file and no other
to know what an entry means. It needs the standard library only, so that an auditor can
run it alone.

What each kind does to an account's (settled, held), for the amount a of its posting
and what its charge holds there:

    open, tighten, freeze, thaw, refuse, adopt, forget, checkpoint     nothing
    reserve                     held + a (nothing, if a preflight held it already)
    settle                      held - what the charge holds, settled + a
    forfeit                     held - a, settled + a; a is what the charge holds
    void, seal                  held - a; a is what the charge holds
    amend, prior, repair        settled + a
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import add, le, sub
from typing import Any, NamedTuple

from dpflow.ledger.entry import (
    Columns,
    Entry,
    Posting,
    Written,
    canonical,
    entry_hash,
    postings_text,
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
    Granted,
    JournalError,
    Release,
    Rows,
    Sums,
    Term,
    account_of,
    added_up,
    book_of,
    charge_of,
    epoch_of,
    flow_mark,
    key_of,
    name_of_term,
    run_of,
)

# What the kinds do


class Kind(NamedTuple):
    """What an entry of a kind does.

    Attributes:
        settles: Whether its amount is added to what is settled.
        ends: The state that its charge has afterwards, if it ends one.
        returns: Whether its amount must be all that its charge holds.
        ran: By how much it changes the number of charges that may have read data. No
            body runs under a preflight, so that a seal takes it back as a void does.
        charges: Whether its postings may hold anything but nothing.
    """

    settles: bool = False
    ends: str | None = None
    returns: bool = False
    ran: int = 0
    charges: bool = True


KINDS: Mapping[str, Kind] = {
    "open": Kind(charges=False),
    "tighten": Kind(charges=False),
    "freeze": Kind(charges=False),
    "thaw": Kind(charges=False),
    "adopt": Kind(charges=False),
    "forget": Kind(charges=False),
    "checkpoint": Kind(charges=False),
    "refuse": Kind(),
    "reserve": Kind(ran=1),
    "settle": Kind(settles=True, ends="settled"),
    "void": Kind(ends="void", returns=True, ran=-1),
    "forfeit": Kind(settles=True, ends="forfeited", returns=True),
    "seal": Kind(ends="sealed", returns=True, ran=-1),
    "amend": Kind(settles=True, ran=1),
    "prior": Kind(settles=True, ran=1),
    "repair": Kind(settles=True, ran=1),
}


def posted(
    kind: str, before: Account | None, amount: Amounts, held: Amounts, *, drawn: bool
) -> Posting:
    """Return what an entry does to one account.

    Args:
        kind: Of the entry.
        before: The account; None before its first entry.
        amount: What the entry posts there.
        held: What its charge holds there.
        drawn: For a reserve, whether a preflight held the amount already.

    Raises:
        JournalError: If the account would hold less than nothing.
    """
    if before is None:
        settled = holds = (0,) * len(amount)
    else:
        settled, holds = before.settled, before.held
    rule = KINDS[kind]
    if len(settled) != len(amount) or (rule.ends and len(held) != len(amount)):
        what = f"{list(amount)} has not as many components as its account"
        raise JournalError(what)
    if kind == "reserve" and not drawn:
        holds = tuple(map(add, holds, amount))
    elif rule.ends is not None:
        holds = tuple(map(sub, holds, held))
        if min(holds) < 0:
            what = f"less than nothing would be held: {list(holds)}"
            raise JournalError(what)
    if rule.settles:
        settled = tuple(map(add, settled, amount))
    return Posting(amount, settled, holds)


def written(
    rows: Rows,
    book: str,
    kind: str,
    amounts: Sums,
    body: Mapping[str, Any],
    *,
    charge: str | None,
    at: str,
    writer: str,
) -> Entry:
    """Return the next entry of a book, which `follow` then reads.

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
    held = charge_of(rows, charge).held if KINDS[kind].ends else {}
    drawn = "preflight" in body and kind == "reserve"
    postings = {
        account: posted(
            kind,
            account_of(rows, account),
            amount,
            held.get(account, ()),
            drawn=drawn,
        )
        for account, amount in sorted(amounts.items())
    }
    number, told = head.number + 1, postings_text(postings)
    text = canonical(body)
    columns = Columns(book, number, kind, charge, told, text, at, writer)
    whole = entry_hash(head.hash, columns)
    entry = Written(book, number, kind, charge, postings, body, at, writer, whole)
    entry.texts = told, text
    return entry


def follow(rows: Rows, entry: Entry) -> Changes:
    """Return the rows that an entry changes; this alone says what an entry means.

    Args:
        rows: The state before the entry; it is not changed.
        entry: The next entry of its book. Its hash is checked where it is read.

    Raises:
        JournalError: If it does not follow from what was before.
    """
    rule = KINDS.get(entry.kind)
    if rule is None:
        what = f"no entry is of kind {entry.kind!r}"
        raise JournalError(what)
    head = book_of(rows, entry.book)
    if entry.number != head.number + 1:
        what = f"entry {head.number + 1} is missing; {entry.number} is the next"
        raise JournalError(what)
    moves = _Moves(rows, entry, rule)
    moves.accounts()
    moves.charge()
    moves.release()
    moves.others()
    moves.book(head)
    return moves.changes


class _Moves:
    """The rows that one entry changes, as they are found."""

    def __init__(self, rows: Rows, entry: Entry, rule: Kind) -> None:
        self.rows, self.entry, self.rule = rows, entry, rule
        self.body = entry.body
        self.changes: Changes = {}
        self.preflight: Mapping[str, Any] | None = (
            self.body.get("preflight") if entry.kind == "reserve" else None
        )
        self.before: Charge | None = None
        if entry.charge is not None and ("charge", entry.charge) in rows:
            self.before = charge_of(rows, entry.charge)

    def accounts(self) -> None:
        """Move the sums of every account that the entry posts to."""
        entry, kind = self.entry, self.entry.kind
        if not self.rule.charges and entry.postings:
            what = f"an entry of kind {kind} posts nothing"
            raise JournalError(what)
        held = self.before.held if self.rule.ends and self.before else {}
        drawn = self.preflight is not None
        overdrawn, told = self.body.get("overdrawn", ()), self.body.get("told", {})
        book, number, mine = entry.book, entry.number, f"{entry.book}#"
        for name, posting in entry.postings.items():
            before = account_of(self.rows, name)
            if not name.startswith(mine):
                what = f"account {name!r} belongs to another book"
                raise JournalError(what)
            found = posted(
                kind, before, posting.amount, held.get(name, ()), drawn=drawn
            )
            if found != posting:
                what = (
                    f"it says settled {list(posting.settled)} and held "
                    f"{list(posting.held)} of account {name!r}; the entries give "
                    f"{list(found.settled)} and {list(found.held)}"
                )
                raise JournalError(what)
            known, above = ({}, False) if before is None else (before[6], before[5])
            if name in told:
                known = {**known, **dict.fromkeys(told[name], number)}
            _, settled, holds = found
            self.changes["account", name] = Account(
                name, book, number, settled, holds, above or name in overdrawn, known
            )

    def charge(self) -> None:
        """Begin, draw from, end or raise the charge that the entry names."""
        entry, kind = self.entry, self.entry.kind
        if kind == "reserve":
            self._reserved()
        elif self.rule.ends is not None:
            self._ended(self.rule.ends)
        elif kind in {"adopt", "amend"}:
            charge = self._known()
            if kind == "adopt":
                charge = charge._replace(owner=self.body["owner"])
            else:
                added = {name: p.amount for name, p in entry.postings.items()}
                charge = charge._replace(added=added_up(charge.added, added))
            self._keep(charge)

    def _reserved(self) -> None:
        entry, body, before = self.entry, self.body, self.before
        if entry.charge is None:
            what = "it reserves for no charge"
            raise JournalError(what)
        amounts = {name: p.amount for name, p in entry.postings.items()}
        if before is None:
            before = Charge(
                entry.charge,
                "open",
                body["owner"],
                {},
                amounts,
                covers=body.get("covers"),
                key=body.get("key"),
                epoch=int(body.get("epoch", 0)),
            )
        elif before.state != "open" or entry.book in before.places:
            what = f"charge {entry.charge} was made before"
            raise JournalError(what)
        else:
            before = before._replace(held={**before.held, **amounts})
        self._keep(before)
        if self.preflight is not None:
            self._drawn(self.preflight["id"], amounts)
        if before.covers is not None:
            run = run_of(self.rows, before.covers)
            run = run._replace(preflight=entry.charge, unheld=None)
            self.changes["run", run.id] = run
        self._note_granted(str(body["step"]), amounts)

    def _drawn(self, preflight: str, amounts: Sums) -> None:
        """Take what a step holds now out of what its run's preflight holds."""
        whole = charge_of(self.rows, preflight)
        if whole.state != "open" or whole.covers is None:
            what = f"charge {preflight} is no open preflight"
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
        self._keep(whole._replace(held=rest))

    def _note_granted(self, step: str, amounts: Sums) -> None:
        key = ("granted", self.entry.book, step)
        known = self.rows.get(key)
        most = known.most if isinstance(known, Granted) else {}
        if all(map(most.__contains__, amounts)) and all(
            all(map(le, amount, most[name])) for name, amount in amounts.items()
        ):
            return
        higher = {
            name: tuple(map(max, most.get(name, amount), amount))
            for name, amount in amounts.items()
        }
        if any(most.get(name) != amount for name, amount in higher.items()):
            self.changes[key] = Granted(self.entry.book, step, {**most, **higher})

    def _ended(self, state: str) -> None:
        entry, charge = self.entry, self._known()
        book = f"{entry.book}#"
        mine = {name for name in charge.held if name.startswith(book)}
        if charge.state not in ("open", state) or not mine:
            what = f"it ends charge {charge.id}, which is {charge.state}"
            raise JournalError(what)
        if mine != set(entry.postings):
            what = f"it ends charge {charge.id} on some of its accounts only"
            raise JournalError(what)
        if (entry.kind, charge.covers is None) in (("seal", True), ("settle", False)):
            # The rest of a preflight returns, for nothing ran under it; a step's never.
            what = f"a {entry.kind} is no end of charge {charge.id}"
            raise JournalError(what)
        if self.rule.returns:
            for name, posting in entry.postings.items():
                if posting.amount != charge.held[name]:
                    what = (
                        f"it ends a charge that holds {list(charge.held[name])} with "
                        f"{list(posting.amount)}"
                    )
                    raise JournalError(what)
        held = {name: a for name, a in charge.held.items() if name not in mine}
        self._keep(
            Charge(charge.id, state, charge.owner, charge.places, held, *charge[5:])
        )

    def release(self) -> None:
        """Claim the charge's release key, keep its output's digest, or let it go."""
        entry, kind, digest = self.entry, self.entry.kind, self.body.get("digest")
        charge = self.changes.get(("charge", entry.charge or ""))
        if not isinstance(charge, Charge) or charge.key is None:
            return
        place = ("release", charge.key)
        found = self.changes.get(place, self.rows.get(place))
        kept = found if isinstance(found, Release) else None
        mine = kept is not None and kept.charge == charge.id
        if kind == "reserve" and not mine:
            # The same whichever of the charge's books is followed first.
            book = str(self.body["accounts"][0]).partition("#")[0]
            self.changes[place] = Release(charge.key, charge.id, book, "claimed")
        elif kept is None or not mine:
            return
        elif kind == "settle" and self.body["outcome"] == "completed":
            self.changes[place] = kept._replace(state="settled", digest=digest)
        elif self.rule.ends and kept.state == "claimed":
            self.changes[place] = None

    def others(self) -> None:
        """Move what is neither an account nor a charge."""
        entry, body = self.entry, self.body
        if entry.kind in {"open", "tighten"}:
            facts = body["term"]
            term = Term(entry.book, facts["number"], entry.number, facts)
            self.changes[key_of(term)] = term
        elif entry.kind == "refuse":
            self._refused()
        elif entry.kind == "forget":
            kept = self.rows.get(("release", body["release"]))
            if not isinstance(kept, Release) or kept.state != "settled":
                what = f"there is no release {body['release']} to forget"
                raise JournalError(what)
            self.changes["release", kept.key] = kept._replace(state="forgotten")
        elif entry.kind == "repair":
            epoch = max(epoch_of(self.rows), int(body.get("epoch", 0)))
            self.changes[EPOCH] = Epoch(epoch)
        for name, said in body.get("claims", {}).items():
            known = self.rows.get(("claim", name))
            by = dict(known.by) if isinstance(known, Claim) else {}
            by.pop(entry.book, None)
            if said is not None:
                by[entry.book] = said
            self.changes["claim", name] = Claim(name, by)

    def _refused(self) -> None:
        entry, charged = self.entry, self.body.get("flow_run")
        for name in self.body.get("runs", ()):
            run = run_of(self.rows, name)
            place = (entry.book, entry.number, name == charged)
            halts = self.body.get("halts", ()) if name == charged else ()
            if name == self.body.get("covers"):
                run = run._replace(unheld=(entry.book, entry.number))
            self.changes["run", name] = run._replace(
                refused=(*run.refused, place),
                halted=tuple(dict.fromkeys((*run.halted, *halts))),
            )

    def book(self, head: Book) -> None:
        """Move the end of the book's journal, and what holds for all of it."""
        entry, frozen, terms = self.entry, head.frozen, head.terms
        if entry.kind == "freeze":
            frozen = {**self.body["frozen"], "at": entry.at}
        elif entry.kind == "thaw":
            frozen = None
        if entry.kind == "open":
            terms = int(self.body["term"]["number"])
            if terms != head.terms + 1:
                what = f"term {head.terms + 1} is missing; {terms} is the next"
                raise JournalError(what)
        ran = head.ran
        if self.rule.ran:
            more, of = self.rule.ran, {name_of_term(name) for name in entry.postings}
            ran = {**ran, **{term: ran.get(term, 0) + more for term in of}}
        if entry.kind == "reserve" and self.body.get("flow") is not None:
            flow = flow_mark(terms, self.body["flow"])
            ran = ran if flow in ran else {**ran, flow: 1}
        self.changes["book", entry.book] = Book(
            entry.book, entry.number, entry.hash, frozen, ran, terms
        )

    def _known(self) -> Charge:
        if self.before is None:
            what = f"it is about charge {self.entry.charge}, which nobody made"
            raise JournalError(what)
        return self.before

    def _keep(self, charge: Charge) -> None:
        entry, places = self.entry, charge.places
        if entry.kind == "reserve" and entry.charge == charge.id:
            places = {**places, entry.book: (entry.number, 0)}
        elif self.rule.ends is not None:
            places = {**places, entry.book: (places[entry.book][0], entry.number)}
        self.changes["charge", charge.id] = charge._replace(places=places)
