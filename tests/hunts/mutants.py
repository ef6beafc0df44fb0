"""Mutants of the ledger: each breaks one line, and some test must notice.

Run it from the root of the repository: `python -m tests.hunts.mutants`. It changes a
copy. A mutant is looked for in all of `dpflow/ledger` and in the locks, so that code
may move; one that is not found, or twice, is stale, and the run fails until the list is
mended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("dpflow", "tests", "flows", "policies", "pyproject.toml")
#: The controls break the ledger themselves, and so would hide what a mutant does.
NO_CONTROLS = ("-k", "not found and not find and not catches and not weaker")


#: What is decided is the same on every database.
ON_FILES = ("-k", "not postgres")


def of_ledger(room: str, *names: str) -> list[str]:
    """Return files of the tests of a room of the ledger."""
    return [f"tests/ledger/{room}/test_{name}.py" for name in names]


#: What may notice a mutant.
STAGES = {
    "model": [
        "tests/hunts/test_model.py",
        "tests/hunts/test_simulation.py",
        "tests/hunts/test_preflight_model.py",
        *NO_CONTROLS,
    ],
    "law": of_ledger(".", "law", "journal"),
    "decisions": [
        *of_ledger(
            "decision",
            "releases",
            "reported",
            "relations",
            "preflight",
            "kernel",
            "gates",
        ),
        *ON_FILES,
    ],
    "gates": [
        *of_ledger("decision", "thresholds", "partitions", "alerts", "gates"),
        *ON_FILES,
    ],
    "office": [
        *of_ledger(
            "decision",
            "operations",
            "freeze",
            "terms",
            "terms_apply",
            "terms_new",
            "terms_lifetime",
            "sources",
        ),
        *of_ledger(".", "provenance"),
        *ON_FILES,
    ],
    "storage": [
        *of_ledger(
            "storage",
            "sqlite",
            "edits",
            "memory",
            "environment_calls",
            "environment_rows",
            "environment_damage",
            "owner",
        ),
        *of_ledger("audit", "amounts"),
    ],
    "crash": [
        "tests/crash",
        "tests/races",
        "tests/hunts/test_faults.py",
        "tests/hunts/test_kills.py",
        "tests/hunts/test_race.py",
        *NO_CONTROLS,
    ],
    "witness": [
        *of_ledger("witness", "rollback", "witnessed_decisions", "witness", "postgres"),
        *of_ledger("audit", "reconcile"),
    ],
    "audit": of_ledger("audit", "verify", "verify_edits", "evidence", "reconcile"),
}
DECISION = ("model", "law", "decisions")
SECONDS = 400


@dataclass(frozen=True)
class Mutant:
    """One line that is wrong.

    Attributes:
        name: What is broken.
        old: What the source says.
        new: What it says in the copy.
        stages: What should notice it, the quickest first.
        equal: Why no test can notice, if none can.
    """

    name: str
    old: str
    new: str
    stages: Sequence[str] = DECISION
    equal: str = ""


OFF = "if False:"
GATES = [
    Mutant(
        "held charges are forgotten",
        "total = self.used + asked",
        "total = self.settled + asked",
    ),
    Mutant(
        "an overdrawn or frozen account admits",
        'if self.state != "open":\n            return False',
        'if self.state != "open":\n            pass',
        ("law", "office", "decisions"),
    ),
    Mutant(
        "an odometer halts at its limit, not above it",
        ".read(total) <= _highest_reading(self.halt)",
        ".read(total) < _highest_reading(self.halt)",
        ("gates", "law"),
    ),
    Mutant(
        "a step is priced for one unit, however many it touches",
        "return _price(rule, halt, group_cost(cost, size), rule.zero())",
        "return _price(rule, halt, group_cost(cost, 1), rule.zero())",
        ("gates", "law"),
    ),
    Mutant(
        "a whole dataset divided by time counts one part",
        'size = len(step.partitions) if "whole" in term.facts["pinned"] else 0',
        'size = 1 if "whole" in term.facts["pinned"] else 0',
        ("gates", "law"),
    ),
    Mutant(
        "a population counts one part",
        "return len(step.partitions) if divided else 1",
        "return 1",
        ("gates", "law"),
    ),
    Mutant(
        "a partition's flow has no gate",
        'yield _empty(term, f"{base}{part}/{kind}/{step.flow}")',
        'yield _empty(term, f"{base}/{kind}/{step.flow}") if not part else None',
        ("gates", "law"),
    ),
    Mutant(
        "a flow's share is no gate",
        "if step.flow is not None and not closed:",
        OFF,
        ("law", "gates"),
    ),
    Mutant(
        "any flow may use the dataset",
        'return flow in pinned["flows"] or pinned["other_flows"] == "allow"',
        "return True",
        ("decisions", "gates", "office"),
    ),
    Mutant(
        "several steps on one account are priced as one",
        "found[gate.id] = (gate, before + more)",
        "found[gate.id] = (gate, more)",
        ("law", "decisions"),
    ),
    Mutant(
        "a freeze is not seen",
        "if state.book(self.dataset).frozen is not None:\n            told",
        "if False:\n            told",
        ("law", "office"),
    ),
    Mutant(
        "an account that was overdrawn admits",
        'told = "overdrawn" if row.overdrawn else told',
        "pass",
        ("law", "office", "decisions"),
    ),
    Mutant(
        "what overdraws is not noticed",
        "return grew and isinstance(self.rule, Filter) and not self.rule.admits(total)",
        "return False",
        ("law", "office"),
    ),
]
ADMIT = [
    Mutant(
        "an id may be sent with any request",
        "if not (mine and request.made(made)):",
        "if not mine:",
    ),
    Mutant(
        "an owner may send another's id",
        '== (request.owner, "open")',
        '== (charge.owner, "open")',
    ),
    Mutant(
        "an id that ended is granted again",
        'mine = (charge.owner, charge.state) == (request.owner, "open")',
        "mine = charge.owner == request.owner",
    ),
    Mutant(
        "a release is made twice at once",
        'if release.state == "claimed" and charge.owner in state.alive:',
        OFF,
    ),
    Mutant(
        "a release is replayed at another cost",
        'if not _made_alike(made.body["cost"], request):',
        OFF,
    ),
    Mutant(
        "a frozen dataset replays",
        "if any(state.book(name).frozen is not None for name in request.locked):",
        OFF,
        ("office", "decisions"),
    ),
    Mutant(
        "an odometer's halt is forgotten",
        "if gate.id in halted or not gate.admits(added)",
        "if not gate.admits(added)",
        ("law", "decisions", "gates"),
    ),
    Mutant(
        "only the first gate is asked",
        "in zip(pairs, case.added, strict=True)",
        "in zip(pairs[:1], case.added, strict=False)",
    ),
    Mutant(
        "a draw is counted as new",
        "if not self.drawn:\n            return self.pairs",
        "if True:\n            return self.pairs",
    ),
    Mutant(
        "a step draws what it does not ask for",
        'shared["preflight"] = {"id": case.cover.preflight, **held}',
        "pass",
    ),
    Mutant(
        "a step of an ended run is admitted",
        "refusing = list(pairs[:1])",
        "pass",
    ),
    Mutant(
        "a flow that the policy closes is admitted",
        "yield whole and whole._replace(closed=closed, holds=holds)",
        "yield whole and whole._replace(holds=holds)",
        ("decisions", "gates", "office"),
    ),
    Mutant(
        "a run's refusal is not noted for the runs around it",
        "runs = [*request.enclosing_runs, request.flow_run, request.covers]",
        "runs = [request.flow_run, request.covers]",
        ("decisions", "law"),
    ),
    Mutant(
        "an odometer that refuses halts nothing",
        '"halts": [gate.id for gate, _ in here if gate.kind == "odometer"],',
        '"halts": [],',
        ("decisions", "law", "gates"),
    ),
    Mutant(
        "a population may be left out",
        "if needed != given:",
        OFF,
        ("gates", "decisions"),
    ),
    Mutant(
        "a cost need not hold for the relation",
        "if relation not in allowed:",
        OFF,
        ("decisions",),
    ),
    Mutant(
        "a release key is not claimed",
        'shared |= {"key": request.release_key}',
        "pass",
    ),
    Mutant(
        "an alert is told again",
        "if threshold <= reached and number_text(threshold) not in known",
        "if threshold <= reached",
        ("gates", "law"),
    ),
    Mutant(
        "what was granted is asked for like what never was",
        "most is not None and amount.fits_within(Tally(most))",
        "most is None",
        ("law", "decisions"),
    ),
]
END = [
    Mutant(
        "anyone may void",
        'if kind == "void" and charge.owner != command.owner:',
        OFF,
    ),
    Mutant(
        "the living are forfeited",
        'charge.state == "open" and charge.owner in state.alive:',
        "charge.owner is None:",
    ),
    Mutant(
        "a charge ends twice",
        'elif charge.state != "open":\n        problem',
        "elif False:\n        problem",
    ),
    Mutant(
        "a second settlement is an error",
        'if kind == "settle" and charge.state == "settled":\n        return True',
        'if kind == "settle" and charge.state == "settled":\n        pass',
    ),
    Mutant(
        "a void that was sent again is an error",
        'command.again and charge.state in ("void", "settled"):',
        "False:",
        ("model", "decisions", "crash"),
    ),
    Mutant(
        "a report charges more than was reserved",
        "return posted.amounts if posted.fits_within(whole) else reserved",
        "return posted.amounts",
        ("decisions", "law"),
    ),
    Mutant(
        "several units at once are given back as one",
        "if gate.size != 1:\n        # Reserved",
        "if False:\n        # Reserved",
        ("decisions", "gates", "law"),
    ),
    Mutant(
        "an amended charge is settled for what it reports",
        'if kind == "settle" and not charge.added else None',
        'if kind == "settle" else None',
        ("office", "decisions", "law"),
    ),
    Mutant(
        "a preflight is settled or voided",
        'if kind == "settle" or (kind == "void" and drawn):',
        OFF,
        ("decisions", "model", "law"),
    ),
    Mutant(
        "another price than was charged is given back from",
        "if gate.price(cost, used) != whole:",
        OFF,
        ("decisions", "law"),
    ),
    Mutant(
        "anyone seals a run",
        "if charge.owner != command.owner:\n        msg",
        "if False:\n        msg",
    ),
    Mutant(
        "a repaired preflight is sealed",
        "if is_repaired(state, charge):\n        # Draws",
        "if False:\n        # Draws",
        ("decisions", "witness", "audit"),
    ),
]
PREFLIGHT = [
    Mutant(
        "a late step draws from a sealed run",
        'ended = charge.state != "open" or is_repaired(state, charge)',
        "ended = False",
    ),
    Mutant(
        "a step draws more than is left",
        "gate.id in held and amount.fits_within(Tally(held[gate.id]))",
        "gate.id in held",
        equal="the journal's reader refuses to draw more than is held",
    ),
    Mutant(
        "a run that was refused draws",
        "if place is not None:\n            refused = dict",
        "if False:\n            refused = dict",
    ),
    Mutant(
        "a living run is taken over",
        "if not owned and charge.owner not in state.alive:",
        "if not owned:",
    ),
    Mutant(
        "a run that declared anew keeps what it held",
        'sealed(pen, charge, {"outcome": "declared anew"})\n    return None',
        "return None",
    ),
    Mutant(
        "any rule holds a run in advance",
        'if rule.theorem == "individual":',
        'if rule.theorem == "nothing":',
        ("decisions",),
    ),
]
TERMS = [
    Mutant(
        "a policy may change after its first charge",
        "and not any(_has_run(book, number) for number in range(1, book.terms + 1))",
        "and True",
        ("office", "decisions"),
    ),
    Mutant(
        "an applied policy may be replaced by a file",
        'term.facts["because"] in BY_ITSELF\n        and',
        "True\n        and",
        ("office", "decisions"),
    ),
    Mutant(
        "an edited policy governs",
        "if term is not None and agrees(term, policy):\n        return term",
        "if term is not None:\n        return term",
        ("model", "office", "decisions"),
    ),
    Mutant(
        "officers need not apply",
        "if not applies or policy.officers:",
        "if not applies:",
        ("office",),
    ),
    Mutant(
        "a source is spent under two names",
        "if book != policy.dataset and not together:",
        OFF,
        ("office",),
    ),
    Mutant(
        "anyone thaws",
        'check_officer(officers_of(term), command.book, command.who, "thaw it")',
        "pass",
        ("office",),
    ),
    Mutant(
        "an amendment replaces what was added before",
        "found[name] = (Tally(found[name]) + Tally(amount)).amounts",
        "found[name] = amount",
        ("law", "office"),
    ),
    Mutant(
        "evidence is charged twice",
        "if used == account:\n            msg",
        "if False:\n            msg",
        ("law", "office"),
    ),
    Mutant(
        "more is carved than is left",
        "if not gate.admits(amount):\n                raise _too_much",
        "if False:\n                raise _too_much",
        ("office",),
    ),
    Mutant(
        "a gate is loosened in place",
        "if not _is_tighter(old, new):",
        OFF,
        ("office", "audit"),
        equal="the changes were judged before; this looks at the rules as well",
    ),
    Mutant(
        "terms add up to more than the lifetime",
        "if not budgets.fit(lifetime):",
        OFF,
        ("office",),
    ),
    Mutant(
        "a lifetime is raised unasked",
        "if before is None or policy.lifetime is None or allowed:",
        "if True:",
        ("office",),
    ),
]
JOURNAL = [
    Mutant(
        "a settlement keeps what was held",
        "holding = tuple(map(sub, holding, held.get(name, ())))",
        "pass",
        ("law", "model"),
    ),
    Mutant(
        "a forfeit gives back",
        '"forfeit": Kind(settles=True, ends="forfeited", returns=True),',
        '"forfeit": Kind(ends="forfeited", returns=True),',
        ("model", "law"),
    ),
    Mutant(
        "a void is charged",
        '"void": Kind(ends="void", returns=True, ran=-1),',
        '"void": Kind(settles=True, ends="void", returns=True, ran=-1),',
    ),
    Mutant(
        "an amendment charges nothing",
        '"amend": Kind(settles=True, ran=1),',
        '"amend": Kind(ran=1),',
        ("law", "office"),
    ),
    Mutant(
        "a prior charge is not counted as one",
        '"prior": Kind(settles=True, ran=1),',
        '"prior": Kind(settles=True),',
        ("office", "law"),
    ),
    Mutant(
        "a draw is forgotten",
        "rest[name] = left\n",
        "",
    ),
    Mutant(
        "a draw passes what is left",
        "if min(left) < 0:\n            what",
        "if False:\n            what",
        ("law", "audit", "model"),
        equal="what is decided asks first; this guards against other writers",
    ),
    Mutant(
        "an entry may be missing",
        "if number != head.number + 1:",
        OFF,
        ("law", "audit", "storage"),
    ),
    Mutant(
        "a wrong sum is followed",
        "if found[3] != posting[1] or found[4] != posting[2]:\n",
        "if False:\n",
        ("law", "audit", "storage"),
    ),
    Mutant(
        "a charge is made twice",
        'elif before.state != "open" or book in before.places:',
        "elif False:",
        ("law", "audit", "decisions"),
    ),
    Mutant(
        "another amount than was held is given back",
        "if postings[name].amount != held[name]:",
        OFF,
        ("law", "audit", "decisions"),
    ),
    Mutant(
        "half a charge ends",
        "if held.keys() - rest.keys() != postings.keys():",
        OFF,
        ("law", "audit", "decisions"),
    ),
    Mutant(
        "what failed is kept for replay",
        'if entry.kind == "settle" and entry.body["outcome"] == "completed":',
        'if entry.kind == "settle":',
        ("model", "law", "decisions"),
    ),
    Mutant(
        "a late settlement takes the key back",
        "if not isinstance(kept, Release) or kept.charge != entry.charge:",
        "if not isinstance(kept, Release):",
        ("model", "decisions", "law"),
    ),
    Mutant(
        "a void keeps its claim",
        "changes[place] = None",
        "pass",
    ),
    Mutant(
        "a halt is not remembered",
        "halted=tuple(dict.fromkeys((*run.halted, *halts))),",
        "halted=run.halted,",
        ("law", "decisions"),
    ),
    Mutant(
        "a run's refused preflight is not remembered",
        "run = run._replace(unheld=(entry.book, entry.number))",
        "pass",
    ),
    Mutant(
        "a thaw is forgotten",
        'elif kind == "thaw":\n        frozen = None',
        'elif kind == "thaw":\n        pass',
        ("law", "office"),
    ),
    Mutant(
        "a void leaves its term charged",
        '"void": Kind(ends="void", returns=True, ran=-1),',
        '"void": Kind(ends="void", returns=True),',
        ("law", "office", "decisions"),
    ),
    Mutant(
        "what was granted is forgotten",
        "changes[key] = MostGranted(book, step, {**most, **higher})",
        "pass",
        ("law", "decisions"),
    ),
    Mutant(
        "a hash leaves out who wrote",
        '\'"postings":{postings},"writer":{quoted(writer)}}}\'',
        '\'"postings":{postings},"writer":{quoted("")}}}\'',
        ("model", "storage", "audit"),
    ),
    Mutant(
        "a hash is not compared",
        "if entry_hash(previous, columns) != told:",
        OFF,
        ("model", "storage", "audit"),
    ),
]
SHELL = [
    Mutant(
        "a request that failed leaves traces",
        "return Decision(answer=error, state=state)",
        "return Decision(error, state, tuple(state.entries.values()))",
        ("model", "decisions"),
    ),
    Mutant(
        "the witness hears of nothing",
        "self.watch.tell([entry for each in found for entry in _news(each)])",
        "pass",
        ("witness",),
    ),
    Mutant(
        "a step runs that the witness was not told of",
        "return [self._untold(each, error) for each in found]",
        "return [each.answer for each in found]",
        ("witness",),
    ),
    Mutant(
        "a charge that nobody was told of is kept",
        'self.void(found.answer.reservation, reason="not witnessed")',
        "pass",
        ("witness",),
    ),
    Mutant(
        "an answer that was lost is not asked for again",
        "again, races = True, 0",
        "raise",
        ("crash", "decisions"),
    ),
    Mutant(
        "a lock is waited for twice",
        'elif again or error.details.keys() & {"waited", "raced"}:',
        "elif again:",
        ("storage", "decisions", "crash"),
    ),
    Mutant(
        "a second try is taken for the first",
        "if again:\n            commands = [",
        "if False:\n            commands = [",
        ("decisions", "model", "crash"),
    ),
    Mutant(
        "the end of a journal is not looked at",
        "check_tail(reading, state, book, self.place)",
        "pass",
        ("storage", "audit"),
    ),
]
STORAGE = [
    Mutant(
        "an account is believed",
        "if posting is None or posting[1:] != (row.settled, row.held):",
        OFF,
        ("model", "storage"),
    ),
    Mutant(
        "a book's end is believed",
        "if self._entry(row.name, row.number).hash != row.hash:",
        OFF,
        ("model", "storage"),
    ),
    Mutant(
        "a charge is believed",
        '        "charge": _check_charge,\n',
        "",
        ("model", "storage"),
    ),
    Mutant(
        "a charge's owner is believed",
        'owner = row.owner if row.covers is None else body.get("owner")',
        'owner = body.get("owner")',
        ("model", "storage"),
    ),
    Mutant(
        "a charge may end twice in the tables",
        "CREATE UNIQUE INDEX entry_ended ON entry (charge, book)",
        "CREATE INDEX entry_ended ON entry (charge, book)",
        ("model", "storage"),
    ),
    Mutant(
        "what must be there may be gone",
        "        for key in self._needed - rows.keys():",
        "        for key in set[Key]():",
        ("model", "storage"),
    ),
    Mutant(
        "an account may stand before an entry that moved it",
        "if isinstance(row, Account) and row.entry < number:",
        OFF,
        ("model", "storage"),
    ),
    Mutant(
        "an account may stand behind the end of its book",
        "if not isinstance(book, Book) or row.entry > book.number:",
        OFF,
        ("model", "storage"),
    ),
    Mutant(
        "another row will do",
        "same = names[0] == key[1] if len(key) == _ONE else _are(names, key)",
        "same = True",
        ("model", "storage"),
    ),
    Mutant(
        "another ledger is used",
        "if ledger != self.identity.ledger:",
        OFF,
        ("storage",),
    ),
    Mutant(
        "an old writer writes",
        "if needed > SCHEMA_VERSION:",
        OFF,
        ("storage",),
    ),
    Mutant(
        "processes share the lock",
        "fcntl.LOCK_SH if shared else fcntl.LOCK_EX",
        "fcntl.LOCK_SH",
        ("storage", "crash"),
    ),
    Mutant(
        "transactions begin as readers",
        'return self._transaction("BEGIN IMMEDIATE")',
        'return self._transaction("BEGIN")',
        ("storage", "crash"),
    ),
    Mutant(
        "a connection is kept after an error",
        "if self._file_lock.is_held and not whole:",
        OFF,
        ("crash", "storage"),
    ),
    Mutant(
        "settings are not read back",
        'if (mode, level) != ("wal", 2):',
        OFF,
        ("storage",),
    ),
    Mutant(
        "not every commit is synced",
        "synchronous = FULL",
        "synchronous = NORMAL",
        ("storage",),
    ),
    Mutant(
        "a commit into a removed file counts",
        "# What went into a file that is not there any more is no commit.\n"
        "                self._check_same_files()",
        "# What went into a file that is not there any more is no commit.",
        ("storage",),
    ),
    Mutant(
        "a lock file that was removed still locks",
        "if self._is_at_its_path():",
        "if True:",
        ("storage", "crash"),
    ),
    Mutant(
        "a ledger in memory serves forks",
        "if found.pid != os.getpid():",
        OFF,
        ("storage",),
    ),
]
WITNESS = [
    Mutant(
        "what was witnessed is not compared",
        "gone = unsure and missing(reading, unsure)",
        "gone: list[Line] = []",
        ("witness",),
    ),
    Mutant(
        "the newest lines are not compared again",
        "lines = [*unseen.lines, *filter(None, again)]",
        "lines = [*unseen.lines]",
        ("witness",),
    ),
    Mutant(
        "an older epoch will do",
        "if header is not None and epoch < header.epoch:",
        OFF,
        ("witness",),
    ),
    Mutant(
        "what others told before own lines is taken for compared",
        "known = end is not None and end.signature == before",
        "known = end is not None",
        ("witness",),
    ),
    Mutant(
        "a file without a header is a witness",
        "if text != seen.text or seen.header is None:",
        "if text != seen.text:",
        ("witness",),
    ),
    Mutant(
        "an account of long ago is believed",
        "if line is not None and row.id in line.amounts and row.entry < line.number:",
        OFF,
        ("witness",),
    ),
    Mutant(
        "the witness hears of no decision",
        'return entry.body["term"]["because"] not in BY_ITSELF',
        "return False",
        ("witness",),
    ),
    Mutant(
        "a new witness knows of no freeze",
        "found += [head, *_decisions(reading, book, head.number)]",
        "found += [head]",
        ("witness",),
    ),
    Mutant(
        "a compacted witness knows of no freeze",
        "if line.decides or (line.place, line.hash) in places",
        "if (line.place, line.hash) in places",
        ("witness",),
    ),
    Mutant(
        "a lost freeze is forgotten",
        "if loss.frozen and term is not None and pen.state.book(book).frozen is None:",
        OFF,
        ("witness", "audit"),
    ),
    Mutant(
        "a repair is made twice",
        "if epoch_of(state.rows) != command.before or moved or claimed:",
        OFF,
        ("audit", "witness"),
    ),
    Mutant(
        "any ledger may use a source",
        "if governor != self.ledger:",
        "if governor is None:",
        ("office",),
    ),
    Mutant("anyone's grant will do", "if grant.taker != ledger:", OFF, ("office",)),
    Mutant(
        "a lifetime above its grant will do",
        'elif not grant.covers(policy.declared()["lifetime"]):',
        "elif False:",
        ("office",),
    ),
    Mutant("a changed grant will do", "if told != grant.digest:", OFF, ("office",)),
]
MUTANTS = [
    *GATES,
    *ADMIT,
    *END,
    *PREFLIGHT,
    *TERMS,
    *JOURNAL,
    *SHELL,
    *STORAGE,
    *WITNESS,
]


def sources(folder: Path) -> list[Path]:
    """Return the files that mutants are in."""
    package = folder / "dpflow"
    rooms = package / "ledger"
    return [
        *sorted(rooms.rglob("*.py")),
        rooms / "storage" / "sqlite.sql",
        package / "locks.py",
    ]


def copy_of(mutant: Mutant | None) -> Path | None:
    """Make a copy of the repository with the mutant in it; None if it is stale."""
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    if mutant is None:
        return folder
    places = [
        path
        for path in sources(folder)
        for _ in range(path.read_text("utf-8").count(mutant.old))
    ]
    if len(places) != 1:
        shutil.rmtree(folder)
        return None
    text = places[0].read_text("utf-8")
    places[0].write_text(text.replace(mutant.old, mutant.new), "utf-8")
    return folder


def fails(folder: Path, tests: list[str]) -> str:
    """Run tests in a copy; return the first that fails, or nothing."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "--no-header"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        # All cases, which a push takes some of, at a push's size.
        "DPFLOW_CAMPAIGN": "1.01",
    }
    try:
        run = subprocess.run(
            [*command, "-p", "no:cacheprovider", *tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "too slow"
    if run.returncode == 0:
        return ""
    failed = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    broken = [line for line in run.stdout.splitlines() if line.startswith("ERROR")]
    names = [line.split(" - ")[0].split("::")[-1] for line in (*failed, *broken)]
    return names[0] if names else f"exit code {run.returncode}"


def judge(mutant: Mutant | None) -> str | None:
    """Return the first test that notices a mutant, if any; None if it is stale."""
    folder = copy_of(mutant)
    if folder is None:
        return None
    try:
        stages = STAGES if mutant is None else mutant.stages
        found = (fails(folder, STAGES[stage]) for stage in stages)
        return next((test for test in found if test), "")
    finally:
        shutil.rmtree(folder)


def main() -> int:
    """Judge all mutants, or those whose names contain one of the words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", default=[""])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    clean = judge(None)
    if clean:
        print(f"the tests fail without a mutant: {clean}")
        return 1
    chosen = [m for m in MUTANTS if any(word in m.name for word in options.words)]
    bad = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, found in zip(chosen, pool.map(judge, chosen), strict=True):
            if found is None:
                told = "STALE: not in the source exactly once"
            elif found:
                told = f"killed by {found}"
            else:
                told = f"survived: {mutant.equal or 'NO TEST NOTICES'}"
            bad += found is None or not (found or mutant.equal)
            print(f"{mutant.name:45} {told}", flush=True)
    print(f"{len(chosen)} mutants, {bad} stale or unnoticed")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
