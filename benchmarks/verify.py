"""How fast a ledger is verified, beside a plain loop over the same rows.

    python benchmarks/verify.py [entries]    print the table
    python benchmarks/verify.py --check      exit with 1 if a target is missed

The plain loop only writes each entry as canonical JSON and chains its sha256. Target: a
full verification reads at least 100,000 entries a second on one core. Times are
processor time of this process, the best of some rounds.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from dpflow.accounting.costs import Gaussian
from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.decide import decide
from dpflow.ledger.records import Conditions, Granted, Request
from dpflow.ledger.replay import check_tail
from dpflow.ledger.verify import verify
from dpflow.policy import parse_policy

TARGET = 100_000
ENTRIES = 200_000
ROUNDS = 3
STEP = Gaussian(sensitivity=1, sigma=20_000)
POLICY = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {{epsilon: 3, delta: 1e-6}}
filter: {filter}
flows:
  report: {{epsilon: 2, delta: 5e-7}}
"""
FILTERS = ("gaussian", "renyi", "portfolio")


def fill(ledger: Ledger, theorem: str, entries: int) -> None:
    """Reserve and settle steps, in large transactions; each posts to two accounts."""
    policy = parse_policy(POLICY.format(filter=theorem))
    for _ in range(0, entries, 4000):
        with ledger.database.write() as session:
            for _ in range(1000):
                request = Request(
                    reservation=uuid.uuid4().hex,
                    owner=ledger.owners.mine(),
                    policies=(policy,),
                    cost=STEP,
                    step="weekly_revenue",
                    flow="report",
                    flow_run=uuid.uuid4().hex,
                    body={"task_run": uuid.uuid4().hex, "versions": ["1"]},
                )
                answer = decide(session, request, ledger.owners, Conditions())
                assert isinstance(answer, Granted)
                row = session.rows("read_reservation", id=request.reservation)[0]
                ledger._end(session, row, "settle", "settled", {"noise": "opendp"})  # noqa: SLF001


def plain(ledger: Ledger) -> None:
    """Write each entry as canonical JSON and chain it; check nothing else."""
    with ledger.database.read() as session:
        for account in session.rows("list_accounts", dataset=None):
            previous = ""
            whole = {"account": account["id"], "above": 0, "limit": 10**9}
            for row in session.rows("journal_after", **whole):
                entry = dict(row)
                entry.pop("hash")
                text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
                previous = hashlib.sha256((previous + text).encode()).hexdigest()
            assert previous == account["head"]


def best(call: Callable[[], object]) -> float:
    """Return the least processor time of some rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def checked(ledger: Ledger) -> None:
    """Verify a ledger in which nothing is bad."""
    report = verify(ledger)
    assert report.fine, report.bad


def tail(ledger: Ledger) -> None:
    """Check the newest entries, as each process does once."""
    with ledger.database.read() as session:
        check_tail(session, ledger.place)


def main() -> int:
    """Print a line for each theorem; return 1 if a target was to be met and is not."""
    numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
    entries, missed = (numbers or [ENTRIES])[0], False
    print("theorem    entries  verify/s  plain/s  ratio  tail of 1000")
    for theorem in FILTERS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_STATE_HOME"] = folder
            ledger = create_ledger(f"sqlite:///{Path(folder) / 'ledger.db'}")
            fill(ledger, theorem, entries)
            count = verify(ledger).entries
            whole = count / best(lambda ledger=ledger: checked(ledger))
            loop = count / best(lambda ledger=ledger: plain(ledger))
            end = best(lambda ledger=ledger: tail(ledger))
            ledger.close()
        missed |= whole < TARGET
        print(
            f"{theorem:9}  {count:7,}  {whole:8,.0f}  {loop:7,.0f}  "
            f"{whole / loop:5.2f}  {end * 1000:9.1f} ms"
        )
    return int(missed and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
