"""An auditor by other hands: what a ledger's tables must say, given its journal.

It reads the raw tables, on whatever database, and knows nothing of dpflow's own reader
of the journal: of each thing is added up what all entries say of it. Everything that
it checks holds after each commit, whatever happened before.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

#: Asks a database one question in SQL.
Ask = Callable[[str], Sequence[Sequence[Any]]]

#: One epsilon in tally units.
UNIT = math.lcm(10**36, *range(1, 101))
ENDS = {"settle": "settled", "void": "void", "forfeit": "forfeited"}
POSTED = ("settle", "forfeit", "adjust", "repair")


@dataclass
class Facts:
    """What a ledger says, after every sum and hash of it was recomputed.

    Attributes:
        states: The state of each charge.
        reserved: What each charge held at first, by account, in tally units.
        used: What is settled and held on each dataset, in tally units.
        refused: How many refusals are in the journal.
        ids: The ids that the journal names, refused ones included.
    """

    states: dict[str, str] = field(default_factory=dict)
    reserved: dict[str, dict[str, int]] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    ids: set[str] = field(default_factory=set)

    def total(self) -> Fraction:
        """Return the epsilon that is used, over all datasets."""
        return Fraction(sum(self.used.values()), UNIT)


def first(text: Any) -> int:
    """Return the first component of a tally's text."""
    amount: int = data(text)[0]
    return amount


def data(text: Any) -> Any:
    """Read a column of JSON; a database may have read it already."""
    return json.loads(text) if isinstance(text, str) else text


def audit(ask: Ask, cap: Fraction | None = None) -> Facts:
    """Recompute a ledger from its journal alone, and compare its tables.

    Args:
        ask: Asks the database.
        cap: Every dataset's budget; then no refusal may be of what fits. None if
            datasets differ.
    """
    auditor = _Auditor(None if cap is None else int(cap * UNIT))
    identity = ask("SELECT ledger_id, version, created_at, environment FROM ledger")
    auditor.head = _sha256("\n".join(str(each or "") for each in identity[0]))
    names = "number, kind, charge, rows, body, at, writer, hash"
    for entry in ask(f"SELECT {names} FROM entry ORDER BY number"):
        auditor.read(*entry)
    tags = {(str(key), number) for key, number in ask("SELECT key, number FROM tag")}
    assert tags == auditor.tags, "tags are missing, or are too many"
    ((secret,),) = ask("SELECT secret FROM ledger")
    for key, value in ask("SELECT key, value FROM kept"):
        release = auditor.newest[f"release/{key}"]
        assert release["state"] == "settled", "a value is kept that was not settled"
        text = json.dumps(["value", release["charge"], value], separators=(",", ":"))
        made = hmac.digest(bytes.fromhex(secret), text.encode(), "sha256").hex()
        assert made == release["digest"], "the value is another one"
    return auditor.facts()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class _Account:
    settled: list[int]
    held: list[int]


class _Auditor:
    def __init__(self, limit: int | None) -> None:
        self.limit, self.head, self.number, self.refused = limit, "", 0, 0
        self.accounts: dict[str, _Account] = {}
        #: What each charge held when it was made.
        self.reserved: dict[str, dict[str, list[int]]] = {}
        self.states: dict[str, str] = {}
        self.frozen: set[str] = set()
        self.newest: dict[str, Any] = {}
        self.tags: set[tuple[str, int]] = set()
        self.ids: set[str] = set()

    def read(self, *columns: Any) -> None:
        """Take down one entry; they come in order."""
        number, kind, charge, rows_text, body_text, at, writer, stored = columns
        content = [number, kind, charge or "", at, writer, rows_text, body_text]
        computed = _sha256("\n".join([self.head, *map(str, content)]))
        assert (stored, number) == (computed, self.number + 1), "the chain is broken"
        self.head, self.number = stored, number
        rows, body = json.loads(rows_text), json.loads(body_text)
        self.tags |= {(key, number) for key in rows}
        self.ids |= set() if charge is None else {charge}
        amounts = {k[8:]: r for k, r in rows.items() if k.startswith("account/")}
        if kind == "reserve":
            assert charge not in self.states, "reserved twice"
            self.states[charge] = "open"
            self.reserved[charge] = {name: row[0] for name, row in amounts.items()}
        for name, (amount, settled, held, *_) in amounts.items():
            nothing = [0] * len(amount)
            kept = self.accounts.setdefault(name, _Account(nothing, nothing))
            held_now = self.reserved[charge][name] if kind in ENDS else None
            self._post(kept, kind, held_now, amount)
            assert [settled, held] == [kept.settled, kept.held], "a sum is wrong"
            assert min(*settled, *held) >= 0, "less than nothing"
        if kind in ENDS:
            assert self.states[charge] == "open", "ended twice"
            assert set(amounts) == set(self.reserved[charge]), "it ends in part"
            self.states[charge] = ENDS[kind]
        if kind == "refuse":
            self._refuse(body)
        if kind in ("freeze", "unfreeze"):
            self.frozen ^= {body["book"]}
        self.newest.update(rows)
        if charge in self.states:
            state = self.newest[f"charge/{charge}"]["state"]
            assert state == self.states[charge], "a charge lies"

    def _post(self, kept: _Account, kind: str, held: Any, amount: Any) -> None:
        if kind == "reserve":
            kept.held = _sum(kept.held, amount)
        if kind in ENDS:
            assert kind == "settle" or amount == held, "it gives back something else"
            kept.held = _less(kept.held, held)
        if kind in POSTED:
            kept.settled = _sum(kept.settled, amount)

    def _refuse(self, body: Any) -> None:
        """Check that what was refused does not fit, if budgets are known."""
        self.refused += 1
        account = body["account"]
        book, cost = account.partition("#")[0], body["asked"].get("epsilon")
        if self.limit is None or "/" in account or cost is None or book in self.frozen:
            return
        kept = self.accounts.get(account, _Account([0], [0]))
        total = kept.settled[0] + kept.held[0] + int(Fraction(cost) * UNIT)
        assert total > self.limit, "it was refused, and it fits"

    def facts(self) -> Facts:
        """Return what the journal says, and check that no budget is exceeded."""
        result = Facts(states=self.states, refused=self.refused, ids=self.ids)
        result.loaded = {
            charge: {name: amount[0] for name, amount in amounts.items()}
            for charge, amounts in self.reserved.items()
        }
        for name, kept in self.accounts.items():
            book, _, place = name.partition("#")
            if "/" not in place:
                used = result.used.get(book, 0) + kept.settled[0] + kept.held[0]
                result.used[book] = used
        if self.limit is not None:
            assert all(used <= self.limit for used in result.used.values()), "overspent"
        return result


def _sum(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _less(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip(one, other, strict=True)]
