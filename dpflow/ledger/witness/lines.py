"""Lines of a witness, and the state that they add up to.

The witness holds, for each dataset, the newest entry; for each account, its newest
version and use; for each store of people, its newest step; and the hashes of the newest
entries. Everything is raised by pairs of (epoch, number) or (epoch, version): a line of
an older epoch raises nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from dpflow.ledger.account_ids import Amounts, split
from dpflow.ledger.canonical import canonical
from dpflow.ledger.decisions.decision import Decision
from dpflow.ledger.decisions.terms import BY_ITSELF
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Account

#: What each checksum covers besides its line and the ledger's id.
FORMAT = "dpflow-witness 7"
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

    @property
    def decides(self) -> bool:
        """Whether a person decided, and no budget moved."""
        return self.kind in DECISIONS

    def to_text(self, ledger: str) -> str:
        """Write the line, sealed by a checksum."""
        return seal(ledger, canonical(list(self)))

    @classmethod
    def from_text(cls, text: str, ledger: str) -> Line:
        """Read a line.

        Raises:
            ValueError: If it is damaged, or another ledger's or version's.
        """
        fields = json.loads(unseal(ledger, text))
        uses = {n: (v, tuple(used)) for n, (v, used) in fields[6].items()}
        return cls._make([*fields[:6], uses, *fields[7:]])


def seal(ledger: str, content: str) -> str:
    """Return the content of a line with its checksum."""
    return f"{content} {zlib.crc32(f'{FORMAT} {ledger} {content}'.encode()):08x}"


def unseal(ledger: str, text: str) -> str:
    """Return the content of a sealed line.

    Raises:
        ValueError: If it does not fit its checksum.
    """
    content = text.rpartition(" ")[0]
    if text != seal(ledger, content):
        what = f"a line does not fit the ledger and its checksum: {text[:60]!r}"
        raise ValueError(what)
    return content


class Head(NamedTuple):
    """The newest witnessed entry of a dataset.

    Attributes:
        forked: Whether two copies of the ledger were used.
        term: Number of the newest term.
        decided_number: Number of the newest entry that a person decided; 0 without one.
        decided_hash: Hash of that entry.
    """

    epoch: int = -1
    number: int = 0
    hash: str = ""
    forked: bool = False
    term: int = 0
    decided_number: int = 0
    decided_hash: str = ""

    def raised(self, line: Line) -> Head:
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
        if line.decides and line.number >= head.decided_number:
            head = head._replace(decided_number=line.number, decided_hash=line.hash)
        if line.number == head.number and line.hash != head.hash:
            return head._replace(forked=True)
        if line.number > head.number:
            head = head._replace(number=line.number, hash=line.hash)
        return head._replace(term=max(line.term, head.term))


class WitnessedUse(NamedTuple):
    """The newest witnessed use of an account."""

    epoch: int
    version: int
    used: Amounts


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
        head = self.heads[line.dataset] = before.raised(line)
        if line.kind == "forked" or line.epoch < head.epoch:
            return
        hashes = self.hashes.setdefault(line.dataset, {})
        if head.epoch > before.epoch:
            # What a repair's journal lacks never comes back.
            for number in [n for n in hashes if n > line.number]:
                del hashes[number]
        hashes[line.number] = line.hash
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

    def lines(self) -> list[Line]:
        """Return lines that add up to this."""
        uses: dict[tuple[str, int], dict[str, Use]] = {}
        for name, use in self.uses.items():
            place = split(name)[0], use.epoch
            uses.setdefault(place, {})[name] = use.version, use.used
        lines = []
        for dataset, head in self.heads.items():
            people = {
                k: v for k, (_, v) in self.people.items() if split(k)[0] == dataset
            }
            base = Line(dataset, head.epoch, 0, "", "", head.term)
            # Entries that a repair lost cannot be proved: they are of an older epoch.
            older = base._replace(epoch=head.epoch - 1)
            hashes = self.hashes.get(dataset, {})
            lines += [
                older._replace(number=number, hash=hashes[number])
                for number in sorted(hashes.keys() - {head.number})
            ]
            if head.decided_number:
                decided = older._replace(
                    kind="freeze", number=head.decided_number, hash=head.decided_hash
                )
                lines.append(decided)
            for (name, epoch), named in uses.items():
                if name == dataset and epoch < head.epoch:
                    lines.append(base._replace(epoch=epoch, accounts=named))
            named = uses.get((dataset, head.epoch), {})
            newest = base._replace(number=head.number, hash=head.hash)
            lines.append(newest._replace(accounts=named, people=people))
            if head.forked:
                lines.append(base._replace(kind="forked"))
        # Older epochs first: they raise nothing after a newer one.
        return sorted(lines, key=lambda line: (line.epoch, line.kind == "forked"))


def lines_of(decision: Decision, rows: Rows, kinds: Iterable[str]) -> list[Line]:
    """Return the lines of a decision's entries of some kinds, one for each dataset.

    Args:
        decision: The decision, with entries that are committed.
        rows: Rows as they were read, for a command that was sent before.
        kinds: Kinds that have a line.
    """
    lines: dict[str, Line] = {}
    for entry, dataset, _ in decision.entries:
        if entry.kind not in kinds or is_opened_by_step(entry.kind, entry.body):
            continue
        accounts = uses_of(decision.accounts, entry.dataset)
        people = {}
        if entry.kind == "pay":
            people[json.loads(entry.body)["people"]] = str(entry.charge)
        lines[entry.dataset] = Line(
            entry.dataset,
            dataset.epoch,
            entry.number,
            entry.hash,
            entry.kind,
            dataset.term,
            accounts,
            people,
            entry.charge,
        )
    for name, number, digest in decision.earlier:
        dataset, accounts = rows.book(name), uses_of(rows.account_rows, name)
        place = name, dataset.epoch, number, digest, "reserve", dataset.term
        lines[name] = Line(*place, accounts)
    return list(lines.values())


def is_opened_by_step(kind: str, body: str) -> bool:
    """Return True for the entry of a term that a step opened.

    The line of the first charge under the term covers it.
    """
    return kind == "open" and json.loads(body)["term"]["reason"] in BY_ITSELF


def uses_of(accounts: Mapping[str, Account], dataset: str) -> dict[str, Use]:
    """Return version and use of the accounts of a dataset."""
    return {
        name: (row.version, (*map(add, row.settled, row.held),))
        for name, row in accounts.items()
        if split(name)[0] == dataset
    }


def with_keys(lines: Sequence[Line], key: str | None) -> list[Line]:
    """Return the lines of a charge with its release key."""
    return [line._replace(key=key) for line in lines] if key else list(lines)
