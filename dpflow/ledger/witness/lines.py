"""Lines of a witness, and the state that they add up to.

The witness holds, for each dataset, the newest entry; for each account, its newest
version and use; for each store of people, its newest step; and the hashes of the newest
entries. Everything is raised by pairs of (epoch, number) or (epoch, version): a line of
an older epoch raises nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.canonical import canonical
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.decisions.terms import BY_ITSELF
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account, Entry

#: What each checksum covers besides its line and the ledger's id.
FORMAT = "dpflow-witness 8"
#: Hashes that are kept of each dataset, besides every `THINNED`-th.
KEPT, THINNED = 1000, 100
#: Kinds of entries that a person decides; they move no budget.
DECISIONS = frozenset({"open", "tighten", "access", "freeze", "unfreeze"})
#: Kinds whose line is synced before the command is answered.
WITNESSED = DECISIONS | {"reserve", "pay", "adjust", "repair", "upgrade"}
#: Kinds that end a charge; the loss of their lines harms nothing.
ENDS = frozenset({"settle", "void", "forfeit"})

#: Version and use of an account: settled and held.
Use = tuple[int, Amounts]


class Line(NamedTuple):
    """What the witness remembers of an entry of a dataset.

    Attributes:
        kind: Kind of the entry; "forked" marks a dataset of which two copies are used.
        term: Number of the newest term.
        accounts: Version and use of the accounts that the entry changed.
        people: Newest step of the stores of people that it paid.
        charge: The charge that the entry is about.
        key: The release key of the charge, for people.
    """

    dataset: str
    epoch: int
    number: int
    hash: str
    kind: str
    term: int = 0
    accounts: Mapping[str, Use] = {}
    people: Mapping[str, str] = {}
    charge: str | None = None
    key: str | None = None


class Head(NamedTuple):
    """The newest witnessed entry of a dataset.

    Attributes:
        forked: Whether two copies of the ledger were used.
        term: Number of the newest term.
        decided_number: Number of the newest entry that a person decided; 0 without one.
        decided_hash: Hash of that entry.
        trusted_number: Number of the entry with which `ledger trust` began the witness,
            which holds nothing of before; 0 if it was begun with the ledger.
        trusted_hash: Hash of that entry.
    """

    epoch: int = -1
    number: int = 0
    hash: str = ""
    forked: bool = False
    term: int = 0
    decided_number: int = 0
    decided_hash: str = ""
    trusted_number: int = 0
    trusted_hash: str = ""

    def raise_to(self, line: Line) -> Head:
        """Return the head after a line."""
        if line.kind == "forked":
            return self._replace(forked=self.forked or line.epoch >= self.epoch)
        if line.epoch < self.epoch:
            return self
        head = self
        if line.epoch > self.epoch:
            # A repair begins an epoch, in which one copy is left.
            head = self._replace(epoch=line.epoch, number=-1, forked=False)
            if self.decided_number >= line.number > 0:
                # The repair stands for a decision that is lost.
                head = head._replace(decided_number=line.number, decided_hash=line.hash)
        if line.kind in DECISIONS and line.number >= head.decided_number:
            head = head._replace(decided_number=line.number, decided_hash=line.hash)
        if line.number == head.number and line.hash != head.hash:
            return head._replace(forked=True)
        if line.number > head.number:
            head = head._replace(number=line.number, hash=line.hash)
        return head._replace(term=max(line.term, head.term))

    def refuses(self, line: Line) -> bool:
        """Return True if two copies are in use, or a line is of an older epoch."""
        # A repair begins an epoch, in which one copy is left.
        return line.epoch < self.epoch or (self.forked and line.epoch <= self.epoch)


class WitnessedUse(NamedTuple):
    """The newest witnessed use of an account."""

    epoch: int
    version: int
    used: Amounts


#: What a witness holds under a kind, a name and a number, as JSON.
Row = tuple[str, str, int, str]


@dataclass(slots=True)
class Witnessed:
    """Everything that a witness holds, or what it holds of some datasets.

    Attributes:
        heads: Newest entry by dataset.
        uses: Newest use by account.
        people: Newest step of each store, with the number of its entry.
        hashes: By dataset, hashes of its newest entries and of every 100th before.
        keys: By dataset, charges and release keys of entries, until compaction.
    """

    heads: dict[str, Head] = field(default_factory=dict)
    uses: dict[str, WitnessedUse] = field(default_factory=dict)
    people: dict[str, tuple[int, str]] = field(default_factory=dict)
    hashes: dict[str, dict[int, str]] = field(default_factory=dict)
    keys: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        """Raise by a line."""
        before = self.heads.get(line.dataset, Head())
        head = self.heads[line.dataset] = before.raise_to(line)
        if line.kind == "forked" or line.epoch < head.epoch:
            return
        self.hashes.setdefault(line.dataset, {})[line.number] = line.hash
        for name, (version, used) in line.accounts.items():
            use = WitnessedUse(line.epoch, version, used)
            if name not in self.uses or use[:2] > self.uses[name][:2]:
                self.uses[name] = use
        for name, newest in line.people.items():
            anew = line.kind == "repair"
            if anew or line.number >= self.people.get(name, (0, ""))[0]:
                self.people[name] = line.number, newest
        if line.charge and line.key:
            keys = self.keys.setdefault(line.dataset, {})
            keys[line.number] = line.charge, line.key

    def thin(self) -> None:
        """Leave the newest hashes of each dataset and every 100th before."""
        for dataset, hashes in self.hashes.items():
            newest = {*sorted(hashes)[-KEPT:]}
            self.hashes[dataset] = {
                number: digest
                for number, digest in hashes.items()
                if number in newest or number % THINNED == 0
            }

    def rows(self) -> Iterator[Row]:
        """Yield what the witness stores of this, but for release keys."""
        by_kind: dict[str, Mapping[str, object]]
        by_kind = {"head": self.heads, "use": self.uses, "people": self.people}
        for kind, values in by_kind.items():
            for name, value in values.items():
                yield kind, name, 0, canonical(value)
        for dataset, hashes in self.hashes.items():
            for number, digest in hashes.items():
                yield "hash", dataset, number, canonical(digest)

    def put(self, row: Row) -> None:
        """Add a row that was stored."""
        kind, name, number, text = row
        value = json.loads(text)
        if kind == "head":
            self.heads[name] = Head(*value)
        elif kind == "use":
            epoch, version, used = value
            self.uses[name] = WitnessedUse(epoch, version, tuple(used))
        elif kind == "people":
            self.people[name] = value[0], value[1]
        elif kind == "hash":
            self.hashes.setdefault(name, {})[number] = value


def seal(ledger: str, content: object) -> str:
    """Return a line or a row as JSON with its checksum."""
    return add_checksum(ledger, canonical(content))


def add_checksum(ledger: str, text: str) -> str:
    """Return a text with its checksum, which is bound to the ledger."""
    return f"{text} {zlib.crc32(f'{FORMAT} {ledger} {text}'.encode()):08x}"


def unseal(ledger: str, text: str) -> Line | Row:
    """Return the line or the row that was sealed.

    Raises:
        ValueError: If it does not fit its checksum.
    """
    content = text.rpartition(" ")[0]
    if text != add_checksum(ledger, content):
        what = f"a line does not fit the ledger and its checksum: {text[:60]!r}"
        raise ValueError(what)
    fields = json.loads(content)
    if len(fields) != len(Line._fields):
        return tuple(fields)
    uses = {name: (version, tuple(used)) for name, (version, used) in fields[6].items()}
    return Line._make([*fields[:6], uses, *fields[7:]])


def lines_of(
    decision: Decision, rows: Rows, kinds: Iterable[str], key: str | None = None
) -> list[Line]:
    """Return the lines of a decision's entries of some kinds, one for each dataset.

    Args:
        decision: The decision, with entries that are committed.
        rows: Rows as they were read, for a charge that began or ended before.
        kinds: Kinds that have a line.
        key: Release key of the charge.
    """
    lines: dict[str, Line] = {}
    for entry, dataset, _ in decision.entries:
        if entry.kind in kinds and not is_opened_by_step(entry):
            name, people = dataset.name, dict[str, str]()
            if entry.kind == "pay":
                people[json.loads(entry.body)["people"]] = str(entry.charge)
            columns = name, dataset.epoch, entry.number, entry.hash, entry.kind
            uses, keys = uses_of(decision.accounts, name), (entry.charge, key or None)
            lines[name] = Line(*columns, dataset.term, uses, people, *keys)
    for name, number, digest in decision.earlier:
        row, uses = rows.book(name), uses_of(rows.account_rows, name)
        lines[name] = Line(name, row.epoch, number, digest, "reserve", row.term, uses)
    return list(lines.values())


def is_opened_by_step(entry: Entry) -> bool:
    """Return True for the entry of a term that a step opened.

    The line of the first charge under the term covers it.
    """
    return (
        entry.kind == "open" and json.loads(entry.body)["term"]["reason"] in BY_ITSELF
    )


def uses_of(accounts: Mapping[str, Account], dataset: str) -> dict[str, Use]:
    """Return version and use of the accounts of a dataset."""
    return {
        name: (row.version, (*map(add, row.settled, row.held),))
        for name, row in accounts.items()
        if split(name)[0] == dataset
    }
