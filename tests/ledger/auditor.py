"""An auditor by other hands: what a ledger's tables must say, given its journal.

It reads the raw tables, on whatever database, and knows nothing of dpflow's own reader
of the journal: no state is folded, but of each thing is added up what all entries of
its book say of it. Everything that it checks holds after each commit, whatever happened
before.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

#: Asks a database one question in SQL.
Ask = Callable[[str], Sequence[Sequence[Any]]]

#: One epsilon in tally units.
UNIT = math.lcm(10**36, *range(1, 101))
ENDS = {"settle": "settled", "void": "void", "forfeit": "forfeited", "seal": "sealed"}
POSTED = ("settle", "forfeit", "amend", "prior", "repair")
ENTRY = "book, number, kind, charge, postings, body, at, writer, hash"


@dataclass
class Facts:
    """What a ledger says, after every sum and hash of it was recomputed.

    Attributes:
        states: The state of each charge.
        asked: What each charge held when it was made, by account, in tally units.
        used: What is settled and held on each dataset, in tally units.
        refused: How many refusals are in the journal.
        ids: The ids that the journal names, refused ones included.
    """

    states: dict[str, str] = field(default_factory=dict)
    asked: dict[str, dict[str, int]] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    ids: set[str] = field(default_factory=set)

    def total(self) -> Fraction:
        """Return the epsilon that is used, over all datasets."""
        return Fraction(sum(self.used.values()), UNIT)


def audit(ask: Ask, cap: Fraction | None = None) -> Facts:
    """Recompute a ledger from its journal alone, and compare its tables.

    Args:
        ask: Asks the database.
        cap: Every dataset's budget; then no refusal may be of what fits. None if
            datasets differ.
    """
    auditor = _Auditor(None if cap is None else int(cap * UNIT))
    for row in ask(f"SELECT {ENTRY} FROM entry ORDER BY book, number"):
        auditor.read(*row)
    auditor.check_books(ask("SELECT name, number, hash, frozen, ran, terms FROM book"))
    auditor.check_terms(ask("SELECT book, number, entry FROM term"))
    columns = "id, book, entry, settled, held, overdrawn, told"
    auditor.check_accounts(ask(f"SELECT {columns} FROM account"))
    columns = "id, state, owner, places, held, added, covers, key, epoch"
    auditor.check_charges(ask(f"SELECT {columns} FROM charge"))
    columns = "key, charge, book, state, digest, value"
    ((secret,),) = ask("SELECT release_secret FROM ledger")
    auditor.check_releases(ask(f"SELECT {columns} FROM release"), secret)
    columns = "id, refused, halted, preflight, unheld"
    auditor.check_runs(ask(f"SELECT {columns} FROM run"))
    auditor.check_granted(ask("SELECT book, step, most FROM granted"))
    auditor.check_claims(ask("SELECT name, said FROM claim"))
    repairs = ask("SELECT value FROM row WHERE key = 'epoch:'") or [("[0]",)]
    assert json.loads(repairs[0][0]) == [auditor.epoch], "the epoch lies"
    return auditor.facts()


def first(text: Any) -> int:
    """Return the first component of a tally's text."""
    amount: int = data(text)[0]
    return amount


def data(text: Any) -> Any:
    """Read a column of JSON; a database may have read it already."""
    return json.loads(text) if isinstance(text, str) else text


def whole(content: Any) -> str:
    """Write in canonical form."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


@dataclass
class _Book:
    number: int = 0
    hash: str = ""
    frozen: Any = None
    terms: int = 0
    ran: dict[str, int] = field(default_factory=dict)


@dataclass
class _Account:
    settled: list[int]
    held: list[int]
    entry: int = 0
    overdrawn: bool = False
    told: dict[str, int] = field(default_factory=dict)


@dataclass
class _Charge:
    body: Any
    owner: str
    made: dict[str, int] = field(default_factory=dict)
    asked: dict[str, list[int]] = field(default_factory=dict)
    left: dict[str, list[int]] = field(default_factory=dict)
    added: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, tuple[int, str, Any]] = field(default_factory=dict)

    def state(self) -> str:
        """Return how it ended, alike in each of its books."""
        kinds = {kind for _, kind, _ in self.ended.values()}
        if not kinds:
            return "open"
        assert len(kinds) == 1, "it ended in two ways"
        assert set(self.ended) == set(self.made), "half of it ended"
        return ENDS[kinds.pop()]


class _Auditor:
    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.epoch = 0
        self.refusals = 0
        self.books: dict[str, _Book] = defaultdict(_Book)
        self.accounts: dict[str, _Account] = {}
        self.charges: dict[str, _Charge] = {}
        self.terms: dict[tuple[str, int], int] = {}
        self.granted: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
        self.claims: dict[str, dict[str, str]] = defaultdict(dict)
        self.withdrawn: set[str] = set()
        #: By run and book: what was refused, halted, and became of its run reservation.
        self.refused: dict[str, set[tuple[str, int, bool]]] = defaultdict(set)
        self.halted: dict[str, set[str]] = defaultdict(set)
        self.preflights: dict[str, dict[str, list[Any]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self.ids: set[str] = set()

    # The journal

    def read(self, *columns: Any) -> None:
        """Take down one entry; those of a book come in order."""
        name, number, kind, charge, text, told, at, writer, stored = columns
        book, postings, body = self.books[name], data(text), data(told)
        content = {
            "book": name,
            "number": number,
            "kind": kind,
            "charge": charge,
            "postings": postings,
            "body": body,
            "at": at,
            "writer": writer,
        }
        computed = hashlib.sha256((book.hash + whole(content)).encode()).hexdigest()
        assert stored == computed, "the chain is broken"
        assert number == book.number + 1, "an entry is missing"
        book.number, book.hash = number, stored
        if charge is not None:
            self.ids.add(charge)
        for account, (amount, *after) in postings.items():
            assert account.split("#")[0] == name, "another book's account"
            self._post(kind, charge, account, amount, body)
            kept = self.accounts[account]
            assert after == [kept.settled, kept.held], "a sum is wrong"
            assert min(*kept.settled, *kept.held) >= 0, "less than nothing"
            kept.entry = number
            kept.overdrawn |= account in body.get("overdrawn", ())
            for threshold in body.get("told", {}).get(account, []):
                kept.told[threshold] = number
        self._note(book, columns[:4], postings, body, at)

    def _post(
        self, kind: str, charge: str | None, account: str, amount: list[int], body: Any
    ) -> None:
        nothing = [0] * len(amount)
        kept = self.accounts.setdefault(account, _Account(nothing, nothing))
        if kind == "reserve":
            self._reserve(charge or "", account, amount, body)
            if "preflight" not in body:
                kept.held = _sum(kept.held, amount)
        elif kind in ENDS:
            held = self.charges[charge or ""].left[account]
            assert kind == "settle" or amount == held, "it gives back something else"
            kept.held = _less(kept.held, held)
        elif kind == "refuse":
            self._refuse(account, amount, body)
        if kind in POSTED:
            kept.settled = _sum(kept.settled, amount)
        if kind == "amend":
            added = self.charges[charge or ""].added
            added[account] = _sum(added.get(account, nothing), amount)

    def _reserve(self, name: str, account: str, amount: list[int], body: Any) -> None:
        charge = self.charges.setdefault(name, _Charge(body, body["owner"]))
        assert account not in charge.asked, "reserved twice"
        charge.asked[account] = charge.left[account] = amount
        if "preflight" in body and any(amount):
            left = self.charges[body["preflight"]["id"]].left
            left[account] = _less(left[account], amount)
            assert min(left[account]) >= 0, "drew more than was held"
        most = self.granted[account.split("#", maxsplit=1)[0], body["step"]]
        most[account] = list(map(max, most.get(account, amount), amount))

    def _refuse(self, account: str, amount: list[int], body: Any) -> None:
        kept = self.accounts[account]
        if self.limit is None or "/" in account or body["account"] != account:
            return
        assert kept.settled[0] + kept.held[0] + amount[0] > self.limit, (
            "refused what fits"
        )

    def _note(
        self, book: _Book, columns: Sequence[Any], postings: Any, body: Any, at: str
    ) -> None:
        name, number, kind, charge = columns
        if kind in {"open", "tighten"}:
            self._note_term(book, columns, body["term"]["number"])
        elif kind in {"freeze", "unfreeze"}:
            book.frozen = {**body["frozen"], "at": at} if kind == "freeze" else None
        elif kind == "refuse":
            self._note_refusal(name, number, body)
        elif kind == "withdraw":
            self.withdrawn.add(body["release"])
        elif kind == "repair":
            self.epoch = max(self.epoch, int(body.get("epoch", 0)))
        elif charge is not None:
            self._note_charge(columns, postings, body)
        self._count(book, kind, postings, body)
        for claim, said in body.get("claims", {}).items():
            self.claims[claim].pop(name, None)
            if said is not None:
                self.claims[claim][name] = said

    def _note_term(self, book: _Book, columns: Sequence[Any], term: int) -> None:
        name, number, kind, _ = columns
        self.terms[name, term] = number
        if kind == "open":
            assert term == book.terms + 1, "a term is missing"
            book.terms = term

    def _note_charge(self, columns: Sequence[Any], postings: Any, body: Any) -> None:
        name, number, kind, charge = columns
        if kind == "reserve":
            made = self.charges.setdefault(charge, _Charge(body, body["owner"])).made
            assert name not in made, "reserved twice"
            made[name] = number
            if "covers" in body:
                self.preflights[body["covers"]][name].append(charge)
        elif kind in ENDS:
            ended = self.charges[charge].ended
            assert name not in ended, "ended twice"
            ended[name] = number, kind, body
            mine = {a for a in self.charges[charge].asked if a.split("#")[0] == name}
            assert mine == set(postings), "it ends on some accounts only"
        elif kind == "adopt":
            self.charges[charge].owner = body["owner"]

    def _note_refusal(self, book: str, number: int, body: Any) -> None:
        self.refusals += 1
        for run in body["runs"]:
            charged = run == body["flow_run"]
            self.refused[run].add((book, number, charged))
            self.halted[run] |= set(body["halts"]) if charged else set()
            if run == body.get("covers"):
                self.preflights[run][book].append(number)

    def _count(
        self, book: _Book, kind: str, postings: Iterable[str], body: Any
    ) -> None:
        """Count charges that may have read data, and mark the flows of steps."""
        counted = {"reserve": 1, "amend": 1, "prior": 1, "repair": 1}
        counted |= {"void": -1, "seal": -1}
        terms = {name.split("#")[1].split("/")[0] for name in postings}
        for term in terms if kind in counted else ():
            book.ran[term] = book.ran.get(term, 0) + counted[kind]
        if kind == "reserve" and body["flow"] is not None:
            book.ran[f"{book.terms}/{body['flow']}"] = 1

    # The tables

    def check_books(self, rows: Sequence[Sequence[Any]]) -> None:
        """Compare the books."""
        found = {name: rest for name, *rest in rows}
        assert set(found) == set(self.books), "a book is missing"
        for name, (number, head, frozen, ran, terms) in found.items():
            book = self.books[name]
            assert (number, head) == (book.number, book.hash), "the book lies"
            told = None if frozen is None else data(frozen), data(ran), terms
            assert told == (book.frozen, book.ran, book.terms), "the book lies"

    def check_terms(self, rows: Sequence[Sequence[Any]]) -> None:
        """Compare which entry each term has."""
        assert {(b, n): e for b, n, e in rows} == self.terms, "a term lies"

    def check_accounts(self, rows: Sequence[Sequence[Any]]) -> None:
        """Compare the accounts."""
        assert {row[0] for row in rows} == set(self.accounts), "an account is missing"
        for name, book, entry, settled, held, overdrawn, told in rows:
            kept = self.accounts[name]
            sums = data(settled), data(held)
            assert sums == (kept.settled, kept.held), "the account lies"
            assert (book, entry) == (name.split("#")[0], kept.entry), "it lies"
            assert bool(overdrawn) == kept.overdrawn, "the account lies"
            assert data(told) == kept.told, "the account lies"

    def check_charges(self, rows: Sequence[Sequence[Any]]) -> None:
        """Compare the charges."""
        assert {row[0] for row in rows} == set(self.charges), "a charge is missing"
        for name, state, owner, places, held, added, covers, key, epoch in rows:
            charge = self.charges[name]
            assert (state, owner) == (charge.state(), charge.owner), "the charge lies"
            numbers = {
                book: [number, charge.ended.get(book, (0,))[0]]
                for book, number in charge.made.items()
            }
            assert data(places) == numbers, "the charge lies"
            left = {} if charge.ended else charge.left
            assert (data(held), data(added)) == (left, charge.added), "it lies"
            told = charge.body.get("covers"), charge.body.get("key")
            assert (covers, key) == told, "the charge lies"
            assert epoch == charge.body.get("epoch", 0) <= self.epoch, "it lies"

    def check_releases(self, rows: Sequence[Sequence[Any]], secret: str) -> None:
        """Compare the releases with the charges that made them."""
        for key, name, book, state, digest, value in rows:
            charge = self.charges[name]
            assert charge.body["key"] == key, "the release lies"
            assert book == charge.body["accounts"][0].split("#")[0], "it lies"
            if state == "claimed":
                assert charge.state() == "open", "a claim of nobody"
                assert (digest, value) == (None, None), "the claim lies"
                continue
            _, kind, body = charge.ended[book]
            assert (kind, body["outcome"]) == ("settle", "completed"), "not settled"
            assert digest == body["digest"], "the release lies"
            if state == "withdrawn":
                assert (value, key in self.withdrawn) == (None, True), "not withdrawn"
            if value is not None:
                text = whole(["value", name, value]).encode()
                made = hmac.digest(bytes.fromhex(secret), text, "sha256").hex()
                assert made == digest, "the value is another one"

    def check_runs(self, rows: Sequence[Sequence[Any]]) -> None:
        """Compare what is known of runs; books have no order among each other."""
        known = {*self.refused, *self.preflights}
        assert {row[0] for row in rows} == known, "a run is missing"
        for name, refused, halted, preflight, unheld in rows:
            told = {(book, number, bool(own)) for book, number, own in data(refused)}
            assert told == self.refused[name], "the run lies"
            assert set(data(halted)) == self.halted[name], "the run lies"
            steps = list(self.preflights[name].items())
            charges = [c for _, each in steps for c in each if isinstance(c, str)]
            assert (preflight in charges) or (preflight is None and not charges)
            place = None if unheld is None else tuple(data(unheld))
            if len(steps) != 1:
                continue
            ((book, events),) = steps
            last = events[-1]
            assert place == ((book, last) if isinstance(last, int) else None)
            assert preflight == (charges[-1] if charges else None), "the run lies"

    def check_granted(self, rows: Sequence[Sequence[Any]]) -> None:
        """Compare the most that each step was granted."""
        told = {(book, step): data(most) for book, step, most in rows}
        assert told == self.granted, "what was granted lies"

    def check_claims(self, rows: Sequence[Sequence[Any]]) -> None:
        """Compare who used which name."""
        assert {name: data(said) for name, said in rows} == self.claims, "a claim lies"

    def facts(self) -> Facts:
        """Return what the journal says, and check that no budget is exceeded."""
        found = Facts(refused=self.refusals, ids=self.ids)
        for name, charge in self.charges.items():
            found.states[name] = charge.state()
            found.asked[name] = {a: amount[0] for a, amount in charge.asked.items()}
        for name, kept in self.accounts.items():
            book, _, place = name.partition("#")
            if "/" not in place:
                used = found.used.get(book, 0) + kept.settled[0] + kept.held[0]
                found.used[book] = used
        if self.limit is not None:
            for used in found.used.values():
                assert used <= self.limit, "overspent"
        return found


def _sum(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _less(one: list[int], other: list[int]) -> list[int]:
    return [a - b for a, b in zip(one, other, strict=True)]
