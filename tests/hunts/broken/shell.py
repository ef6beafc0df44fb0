"""Mutants of what keeps and checks: journal, shell, storages and witness."""

from __future__ import annotations

from tests.hunts.broken.mutant import OFF, Mutant

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
        "changes[key] = MostGranted(book, kept, {**most, name: highest})",
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
        "                    self._check_same_files()",
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
        "if governor == self.ledger:",
        "if True:",
        ("office",),
    ),
]
