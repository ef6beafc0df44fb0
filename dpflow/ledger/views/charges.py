"""Charges as the journal has them: the entries that began and ended each.

The end of a charge names it, and the entry that reserved it says which step, flow and
cost it was; people read both as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import sub
from typing import Any

from dpflow.accounting.costs.base import Cost, cost_from_description
from dpflow.ledger.entry import Amounts, Entry
from dpflow.ledger.journal import KINDS
from dpflow.ledger.rows import account_key
from dpflow.ledger.storage.tables import ENDLESS, Reading


@dataclass(slots=True)
class JournalCharge:
    """A charge, or an amount that a person charged.

    Attributes:
        made: The entry that reserved it; of an amount, the entry itself.
        ended: The entry that ended it; None while it is open.
        amounts: Charged amount by account: posted or still held.
    """

    made: Entry
    ended: Entry | None
    amounts: dict[str, Amounts]

    @property
    def id(self) -> str:
        """Id of the reservation."""
        return str(self.made.charge)

    @property
    def covers(self) -> str | None:
        """The flow run that it holds, if it is a run reservation."""
        covers: str | None = self.made.body.get("covers")
        return covers

    @property
    def cost(self) -> Cost:
        """The step's worst case.

        Raises:
            InvalidCost: If the mechanism is one that this process does not know.
        """
        return cost_from_description(self.made.body.get("cost") or {})

    @property
    def last(self) -> Entry:
        """Its newest entry."""
        return self.ended or self.made

    @property
    def body(self) -> dict[str, Any]:
        """Facts of both entries."""
        return joined(self.last, self.made)


def charges(reading: Reading, whole: str, after: int = 0) -> Iterator[JournalCharge]:
    """Yield the charges that entries about a term began, moved or ended.

    Each comes at its end, and the open ones come last.

    Args:
        reading: The ledger.
        whole: Id of the account that the term's whole dataset or population has.
        after: Number of the entry after which to begin.
    """
    begun: dict[str, JournalCharge] = {}
    for entry in reading.naming_after([account_key(whole)], after):
        kind, name = KINDS[entry.kind], entry.charge or ""
        if entry.kind == "reserve":
            begun[name] = charge = JournalCharge(entry, None, {**entry.amounts})
            if around := begun.get(drawn_from(entry.body)):
                for place in charge.amounts.keys() & around.amounts.keys():
                    rest = map(sub, around.amounts[place], charge.amounts[place])
                    around.amounts[place] = tuple(rest)
        else:
            before = begun.pop(name, None) if kind.ends else begun.get(name)
            made = {name: before.made} if before else beginnings(reading, [name])
            posted = {**entry.amounts} if kind.settles else {}
            yield JournalCharge(made.get(name, entry), entry, posted)
    yield from begun.values()


def root_keys(reading: Reading, book: str) -> list[str]:
    """Return the keys of the accounts that a book's whole has in each of its terms."""
    return [f"account/{key[5:]}" for key in reading.names(f"term/{book}#")]


def newest_numbers(reading: Reading, account: str, most: int) -> list[int]:
    """Return the numbers of the newest entries that name an account, newest first."""
    where = {"key": account_key(account), "end": ENDLESS, "limit": most}
    return [number for (number,) in reading.ask("numbers_down", **where)]


def beginnings(reading: Reading, names: Iterable[str | None]) -> dict[str, Entry]:
    """Return the entries that reserved charges, by charge."""
    keys = [f"charge/{name}" for name in dict.fromkeys(names) if name]
    return reading.load(lambda _: keys).made if keys else {}


def bodies(reading: Reading, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the facts of each entry and of the beginning of its charge."""
    made = beginnings(reading, (each.charge for each in entries))
    return (joined(each, made.get(each.charge or "")) for each in entries)


def joined(entry: Entry, made: Entry | None) -> dict[str, Any]:
    """Return the facts of an entry and of the one that began its charge."""
    if made is None or entry.kind in ("reserve", "refuse"):
        return dict(entry.body)
    # The writer of its end may have no commit.
    return {k: v for k, v in made.body.items() if k != "code"} | dict(entry.body)


def drawn_from(body: Mapping[str, Any]) -> str:
    """Return the reservation that held what an entry reserves; "" if none did."""
    return str((body.get("preflight") or {}).get("id", ""))
