"""What the hunts share: sizes, seeds, figures, an auditor, and broken parts to catch.

The auditor speaks only in the ledger's named statements, so that it reads every
database that the kernel can use.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpflow.ledger.database import Database, Row, Session
from dpflow.ledger.records import canonical, digest
from tests.hunts.trips import PlainTrips
from tests.ledger.support import UNIT, Child

#: How much larger than at each push the hunts are; `make campaign` sets it.
SCALE = float(os.environ.get("DPFLOW_CAMPAIGN", "1"))

#: What each hunt counted, printed at the end of the run.
FIGURES: list[str] = []


def times(count: int) -> int:
    """Return how often to do what each push does so often."""
    return max(1, round(count * SCALE))


def all_happened(wanted: set[str], counts: dict[str, int]) -> bool:
    """Say whether a hunt met all that it looks for; a small one need not."""
    return SCALE < 1 or wanted <= set(counts)


def first_seed() -> int:
    """Return the first seed of a random hunt: DPFLOW_SEED, or a new one."""
    given = os.environ.get("DPFLOW_SEED")
    return random.randrange(10**9) if given is None else int(given)


def figure(hunt: str, **counts: object) -> None:
    """Note what a hunt did, for the end of the run and for a failure's output."""
    told = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items())
    line = f"{hunt}: {told}"
    print(line)
    FIGURES.append(line)


def memory_folder() -> Path:
    """Make a folder that no disk slows down, where there is one."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))


def shared_out(work: Callable[[range], dict[str, int]], items: range) -> Counter[str]:
    """Do some work in two processes, one for each core, and add up what they count."""
    cores = 2

    def child(part: range) -> Child:
        return Child(lambda say: say(json.dumps(work(part))))

    total: Counter[str] = Counter()
    for worker in [child(items[core::cores]) for core in range(cores)]:
        code, lines = worker.end()
        assert code == 0, "\n".join(lines)
        total.update(json.loads(lines[-1]))
    return total


# The auditor


@dataclass
class Facts:
    """What a ledger says, after every sum and hash of it was recomputed.

    Attributes:
        states: The state of each reservation.
        asked: What each reservation holds or held, by account, in tally units.
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


ENDS = {"settle": "settled", "void": "void", "forfeit": "forfeited"}


def audit(session: Session, cap: Fraction) -> Facts:
    """Recompute a ledger from its journal; every dataset's budget is the cap.

    Everything that is checked holds after each commit, whatever happened before.
    """
    facts, limit, open_now = Facts(), int(cap * UNIT), dict[str, set[str]]()
    for account in session.rows("list_accounts", dataset=None):
        used = _replay(session, account, limit, facts, open_now)
        if account["kind"] == "dataset":
            name = account["dataset"]
            facts.used[name] = facts.used.get(name, 0) + used
    for used in facts.used.values():
        assert used <= limit, "overspent"
    for name in facts.asked:
        (row,) = session.rows("read_reservation", id=name)
        assert set(json.loads(row["accounts"])) == set(facts.asked[name]), "not all"
        assert (row["state"] == "open") == (name in open_now)
        assert facts.states.setdefault(name, "open") == row["state"]
    listed = {row["id"] for row in session.rows("open_reservations")}
    assert set(open_now) == listed
    return facts


def _replay(
    session: Session, account: Row, limit: int, facts: Facts, open_now: dict
) -> int:
    """Replay one account's journal and return what it has used."""
    previous, spent, held = "", 0, 0
    place, last = account["id"], 0
    whole = {"above": 0, "limit": 10**9}
    for entry in session.rows("journal_after", account=place, **whole):
        content = {name: value for name, value in dict(entry).items() if name != "hash"}
        previous = digest(previous + canonical(content))
        assert entry["hash"] == previous, "the chain is broken"
        last += 1
        assert entry["seq"] == last, "an entry is missing"
        kind, name, amount = entry["kind"], entry["reservation"], first(entry["amount"])
        if kind == "reserve":
            by_account = facts.asked.setdefault(name, {})
            assert place not in by_account, "reserved twice"
            by_account[place] = amount
            open_now.setdefault(name, set()).add(place)
            held += amount
        elif kind in ENDS:
            assert facts.states.setdefault(name, ENDS[kind]) == ENDS[kind]
            open_now[name].remove(place)
            if not open_now[name]:
                del open_now[name]
            held -= facts.asked[name][place]
            spent += 0 if kind == "void" else amount
        elif kind == "refuse":
            facts.refused += 1
            assert spent + held + amount > limit, "refused what fits"
        facts.ids.add(name)
        after = first(entry["settled_after"]), first(entry["held_after"])
        assert after == (spent, held), "a sum is wrong"
    kept = first(account["settled"]), first(account["held"])
    assert (account["seq"], account["head"]) == (last, previous)
    assert kept == (spent, held), "the account lies"
    return spent + held


def first(text: str) -> int:
    """Return the first component of a tally's text."""
    return json.loads(text)[0]


def audited(database: Database, cap: Fraction) -> Facts:
    """Audit a database in a transaction of its own."""
    with database.read() as session:
        return audit(session, cap)


# Hooks around every call


class Crash(BaseException):
    """The process ends here; nothing catches it."""


class HookedDatabase:
    """Any ledger database whose calls run between two hooks, which tests replace.

    BEGIN and COMMIT are calls like the named statements. A hook that raises before
    COMMIT rolls back; one that raises after it makes the commit's outcome unknown.
    """

    def __init__(self, inner: Database) -> None:
        self.inner = inner
        self.place, self.dialect = inner.place, inner.dialect
        self.quiet()

    @property
    def unwritable(self) -> Any:
        """Why nothing can be written; None if it can."""
        return self.inner.unwritable

    def quiet(self) -> None:
        """Let every call be."""
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Run a block of the inner database between hooks."""
        with self._around(self.inner.write) as session:
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Run a block of the inner database between hooks."""
        with self._around(self.inner.read) as session:
            yield session

    @contextmanager
    def _around(self, begin: Callable[[], Any]) -> Iterator[Session]:
        self.before("BEGIN")
        with begin() as session:
            self.after("BEGIN")
            yield HookedSession(session, self)
            self.before("COMMIT")
        self.after("COMMIT")

    def close(self) -> None:
        """Close the inner database."""
        self.inner.close()


class HookedSession(PlainTrips):
    """A transaction that calls its database's hooks around each statement."""

    def __init__(self, session: Session, hooks: HookedDatabase) -> None:
        self._session, self._hooks = session, hooks

    def lock(self, datasets: Iterable[str]) -> None:
        """Lock between the hooks."""
        self._between(self._session.lock, "lock", {"datasets": list(datasets)})

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Read between the hooks."""
        return self._between(self._session.rows, statement, values)

    def change(self, statement: str, **values: object) -> int:
        """Write between the hooks."""
        return self._between(self._session.change, statement, values)

    def _between(self, call: Callable[..., Any], name: str, values: dict) -> Any:
        self._hooks.before(name)
        result = call(**values) if name == "lock" else call(name, **values)
        self._hooks.after(name)
        return result


def nth(number: int, error: BaseException, *, once: bool) -> Callable[[str], None]:
    """Return a hook that raises at the n-th call, or from there on."""
    count = 0

    def hook(_: str) -> None:
        nonlocal count
        count += 1
        if count == number + 1 or (count > number and not once):
            raise error

    return hook


# Owners without files


class SimulatedOwners:
    """Who lives in a simulation; the kernel asks it as it asks the real one."""

    living: set[str]

    def __init__(self, living: set[str]) -> None:
        self.living, self._name = living, uuid.uuid4().hex
        living.add(self._name)

    def mine(self) -> str:
        """Return the name of this owner."""
        return self._name

    def alive(self, owner: str) -> bool:
        """Say whether an owner lives."""
        return owner in self.living

    def close(self) -> None:
        """Die."""
        self.living.discard(self._name)


# Broken parts, for the controls


def replace_everywhere(
    patch: pytest.MonkeyPatch, name: str, make: Callable[[Any], Any]
) -> None:
    """Replace a function of dpflow.ledger wherever a module has it by that name."""
    found = 0
    for module, content in list(sys.modules.items()):
        if module.startswith("dpflow.ledger") and callable(getattr(content, name, 0)):
            patch.setattr(content, name, make(getattr(content, name)))
            found += 1
    assert found, f"dpflow.ledger has no {name} any more"
