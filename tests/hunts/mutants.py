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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("dpflow", "tests", "flows", "policies", "pyproject.toml")
#: The controls break the ledger themselves, and so would hide what a mutant does.
NO_CONTROLS = ("-k", "not found and not find and not catches and not weaker")
#: What may notice a mutant, the quickest first.
STAGES = [
    ["tests/hunts/test_model.py", "tests/hunts/test_simulation.py", *NO_CONTROLS],
    [
        "tests/ledger/test_kernel.py",
        "tests/ledger/test_releases.py",
        "tests/ledger/test_reported.py",
        "tests/ledger/test_relations.py",
        "tests/ledger/test_preflight.py",
        "tests/ledger/test_provenance.py",
        "tests/ledger/test_recall.py",
        "tests/ledger/test_sqlite.py",
        "tests/races",
        "tests/crash",
    ],
    [
        "tests/hunts/test_faults.py",
        "tests/hunts/test_kills.py",
        "tests/hunts/test_race.py",
        *NO_CONTROLS,
    ],
    [
        "tests/ledger/test_sources.py",
        "tests/ledger/test_witness_postgres.py",
        "tests/ledger/test_memory.py",
        "tests/ledger/test_views.py",
        "tests/ledger/test_verify.py",
        "tests/ledger/test_rollback.py",
        "tests/ledger/test_witnessed_decisions.py",
    ],
]
SECONDS = 400


@dataclass(frozen=True)
class Mutant:
    """One line that is wrong.

    Attributes:
        name: What is broken.
        old: What the source says.
        new: What it says in the copy.
        equal: Why no test can notice, if none can.
    """

    name: str
    old: str
    new: str
    equal: str = ""


OFF = "if False:"
MUTANTS = [
    # The gate
    Mutant(
        "held charges are forgotten",
        "total = self.settled + self.held + asked",
        "total = self.settled + asked",
    ),
    Mutant(
        "an overdrawn or frozen account admits",
        'if self.state != "open":\n            return False',
        'if self.state != "open":\n            pass',
    ),
    Mutant(
        "an odometer halts at its limit, not above it",
        "Fraction(reading) <= self.halt",
        "Fraction(reading) < self.halt",
    ),
    Mutant("the head entry is not checked", "if told != kept:", OFF),
    Mutant(
        "a row that moved is not noticed",
        "if self.change(statement, **values) != 1:",
        "if self.change(statement, **values) > 1:",
        equal="the lock lets nobody move it; the guard is a second line of defence",
    ),
    # The decision
    Mutant("an id may be sent with any request", "if not same:", OFF),
    Mutant(
        "an owner may send another's id",
        'same = (row["fingerprint"], row["owner"], row["state"]) == (\n'
        "        request.fingerprint(),\n"
        "        request.owner,",
        'same = (row["fingerprint"], row["owner"], row["state"]) == (\n'
        "        request.fingerprint(),\n"
        '        row["owner"],',
    ),
    Mutant(
        "a release is made twice at once",
        'if row["state"] == "claimed" and owners.alive(row["owner"]):',
        OFF,
    ),
    Mutant(
        "a release is replayed at another cost",
        'if row["cost"] != cost_text(request.cost):',
        OFF,
    ),
    Mutant(
        "the witness hears of no freeze", "ledger.watch.tell_of_gates(frozen)", "pass"
    ),
    Mutant(
        "the witness hears of no tightening",
        "ledger.watch.tell_of_gates(written)",
        "pass",
    ),
    Mutant(
        "the witness hears of no new term",
        "written = [] if account is None else [account]",
        "written: list[Account] = []",
    ),
    Mutant("a lost freeze is forgotten", "freeze_again(session, each, facts)", "pass"),
    Mutant(
        "a new witness knows of no freeze",
        "return [*heads(session), *closings(session), *checkpoint_heads(session)]",
        "return [*heads(session), *checkpoint_heads(session)]",
    ),
    Mutant(
        "a compacted witness knows of no freeze",
        "if line in newest or line.decides",
        "if line in newest",
    ),
    Mutant(
        "a closer's code is the reserver's",
        "return {k: v for k, v in body.items() if k not in _FACTS} | dict(facts)",
        "return {**body, **facts}",
    ),
    Mutant(
        "an odometer's halt is forgotten",
        "if account.id in halted or not",
        "if not",
    ),
    Mutant(
        "a draw is counted as new",
        "account.rule.zero() if self.drawn else amount",
        "amount",
    ),
    Mutant(
        "a late step draws from a sealed run",
        'ended = row["state"] != "open"\n            drawn',
        "ended = False\n            drawn",
    ),
    Mutant(
        "a draw is forgotten",
        "rest = rest - amount\n    return rest\n\n\ndef amount",
        "pass\n    return rest\n\n\ndef amount",
    ),
    Mutant("anyone seals a run", 'if row["owner"] != ledger.owners.mine():', OFF),
    Mutant(
        "a gate that was edited is used",
        "if not _same_rule(account.rule, rule) or account.halt != halt:",
        OFF,
    ),
    Mutant(
        "a policy may change after its first charge",
        "and not any(is_charged(session, t) for t in",
        "and any(True for t in",
    ),
    Mutant(
        "a claim is not noted",
        "if request.release_key is not None:\n        session.post(",
        "if False:\n        session.post(",
    ),
    # The operations
    Mutant("anyone may void", 'if row["owner"] != self.owners.mine():', OFF),
    Mutant(
        "the living are forfeited",
        'if row["state"] == "open" and self.owners.alive(row["owner"]):',
        OFF,
    ),
    Mutant(
        "a forfeit gives back",
        'gain = account.rule.zero() if kind == "void" else posted',
        'gain = account.rule.zero() if kind != "settle" else posted',
    ),
    Mutant(
        "a charge ends twice",
        'if row["state"] != "open":\n            msg = f"reservation {reservation} is',
        'if False:\n            msg = f"reservation {reservation} is',
    ),
    Mutant(
        "a second settlement is an error",
        'if row["state"] == "settled":\n                return',
        'if row["state"] == "settled":\n                pass',
    ),
    Mutant(
        "what failed is kept for replay", 'if facts["outcome"] != "completed":', OFF
    ),
    Mutant(
        "a request that failed leaves traces",
        'self._session.change("rollback_to_savepoint")',
        "pass",
    ),
    Mutant("another ledger is used", "if found != ledger_id:", OFF),
    Mutant("an old writer writes", 'if row["min_writer"] > SCHEMA_VERSION:', OFF),
    Mutant(
        "a charge that is not held is ended",
        "if not rest.fits_within(account.held):",
        OFF,
    ),
    Mutant(
        "a question is kept as a charge",
        'session.change("rollback_to_savepoint")\n'
        '            session.change("release_savepoint")',
        'session.change("release_savepoint")',
    ),
    Mutant(
        "a report charges more than was reserved",
        "return posted if posted.fits_within(reserved) else reserved",
        "return posted",
    ),
    # The file
    Mutant(
        "processes share the lock",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n            except",
        "fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)\n            except",
    ),
    Mutant(
        "transactions begin as readers",
        'return self._transaction("BEGIN IMMEDIATE")',
        'return self._transaction("BEGIN")  # not immediate',
    ),
    Mutant(
        "a connection is kept after an error",
        "if self._file_lock.is_held and not whole:",
        OFF,
    ),
    Mutant("settings are not read back", 'if (mode, level) != ("wal", 2):', OFF),
    Mutant("not every commit is synced", "synchronous = FULL", "synchronous = NORMAL"),
    Mutant(
        "a commit into a removed file counts",
        "# What went into a file that is not there any more is no commit.\n"
        "                self._check_same_files()",
        "# What went into a file that is not there any more is no commit.",
    ),
    Mutant(
        "a lock file that was removed still locks",
        "if self._is_at_its_path(descriptor):",
        "if True:",
    ),
    # What a connection remembers
    Mutant(
        "a memory does not hear of others",
        "if version != self._version or size > _MOST:",
        "if size > _MOST:",
    ),
    Mutant(
        "a charge that ended is remembered as open",
        '"close_reservation": (("read_reservation", ("id",)),),',
        "",
    ),
    Mutant(
        "a halt is not remembered",
        '("halting_accounts", ("run",)),\n        ',
        "",
    ),
    Mutant(
        "a change that nobody knows leaves the memory as it was",
        "if statement not in KNOWN_CHANGES:\n            self.clear()",
        "if statement not in KNOWN_CHANGES:\n            pass",
    ),
    # The witness and what it remembers
    Mutant(
        "what was witnessed is not compared",
        "self._compare(session, unseen.lines)",
        "pass",
    ),
    Mutant(
        "the newest lines are not compared again",
        "self.check_accounts(session, witness.latest)",
        "pass",
    ),
    Mutant("an older epoch will do", "if epoch < witness.epoch:", OFF),
    Mutant(
        "the ledger's own database keeps its witness",
        "same = _identity(connection) == _identity(other)",
        "same = False",
    ),
    Mutant(
        "a line that is missing in a database is not missed",
        "if numbers != list(range(above + 1, above + 1 + len(numbers))):",
        OFF,
    ),
    Mutant(
        "a connection to the witness crosses a fork",
        "inherited, self._pid = self._connection, os.getpid()\n"
        "            self._connection = None",
        "inherited, self._pid = None, os.getpid()",
    ),
    Mutant(
        "a checkpoint may be counted anew",
        "number=place if counted else None,",
        'number=row["number"],',
        equal="the count is compared as well",
    ),
    # One ledger for one source
    Mutant("any ledger may use a source", "if governor == self.ledger:", "if True:"),
    Mutant(
        "a lifetime above its grant will do",
        'elif not grant.covers(policy.declared()["lifetime"]):',
        "elif False:",
    ),
    Mutant("anyone's grant will do", "if grant.taker != ledger:", OFF),
    Mutant("a changed grant will do", "if told != grant.digest:", OFF),
    Mutant(
        "an unknown grant will do", "ledger.sources.check_given(wish.grant)", "pass"
    ),
    Mutant("more is carved than is left", "if not gate.account.admits(amount):", OFF),
    Mutant("a ledger in memory serves forks", "if memory.pid != os.getpid():", OFF),
]


def sources(folder: Path) -> list[Path]:
    """Return the files that mutants are in."""
    package = folder / "dpflow"
    # The rooms of the ledger that nothing uses yet have lines of their own.
    return [*sorted((package / "ledger").glob("*.py")), package / "locks.py"]


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
        "DPFLOW_CAMPAIGN": "0.2",
        "PYTHONDONTWRITEBYTECODE": "1",
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
        found = (fails(folder, tests) for tests in STAGES)
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
