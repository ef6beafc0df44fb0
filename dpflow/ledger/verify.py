"""The whole ledger, recomputed from its journal.

Every hash, every tally, every end of a reservation, every gate and every release is
computed again and compared with what the ledger says. Entries are read in pages, each
in a transaction of its own, so that steps go on running meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dpflow.exceptions import LedgerError
from dpflow.ledger.account import now
from dpflow.ledger.checkpoints import WITNESSED, forged
from dpflow.ledger.checkpoints import sign as sign_entry
from dpflow.ledger.damage import UNREADABLE
from dpflow.ledger.database import Row, Session
from dpflow.ledger.kernel import Ledger
from dpflow.ledger.records import digest
from dpflow.ledger.verify_account import AccountCheck, Finding, Snapshot
from dpflow.ledger.watch import missing

_PAGE = 4000
_RELEASES = 100

#: Which ends of its reserve a reservation's state tells of.
_ENDS = {
    "open": None,
    "settled": "settle",
    "void": "void",
    "forfeited": "forfeit",
    "sealed": "seal",
}


@dataclass(slots=True, kw_only=True)
class Report:
    """What a verification read, and what it found.

    Attributes:
        bad: The first bad entry of each account, then all else; empty if all agrees.
        trusted: Entries before signed checkpoints, which were not read again.
        checkpoints: How many there are.
        signed: Whether their signatures were checked.
        heads: Number and hash of the newest entry that was read, by account.
    """

    accounts: int = 0
    entries: int = 0
    trusted: int = 0
    reservations: int = 0
    releases: int = 0
    checkpoints: int = 0
    signed: bool = False
    witness: str = "waived"
    bad: list[Finding] = field(default_factory=list)
    heads: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def fine(self) -> bool:
        """Whether nothing is bad."""
        return not self.bad


def first_problem(ledger: Ledger) -> str | None:
    """Say what is the first thing wrong with a ledger; None if it verifies."""
    try:
        found = verify(ledger, sign=False).bad
    except LedgerError as error:
        return error.message
    except UNREADABLE as error:
        return f"it holds something that cannot be read ({error!r:.80})"
    if not found:
        return None
    where = "" if found[0].account is None else f"account {found[0].account!r}"
    where += "" if found[0].entry is None else f", entry {found[0].entry}"
    return f"{where}: {found[0].problem}" if where else found[0].problem


def verify(
    ledger: Ledger,
    *,
    key: bytes | None = None,
    full: bool = True,
    sign: bool = True,
    sign_new: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Recompute a ledger and compare it with what it says.

    Args:
        ledger: The ledger; other processes may go on using it.
        key: Checks the signed checkpoints, and signs the heads if all is fine.
        full: Read every entry; else, with a key, those after the newest checkpoint.
        sign: Sign the heads; else nothing is written, whatever is found.
        sign_new: Sign accounts that have no checkpoint, instead of finding that bad.
        progress: Called with how many entries were just read, and how many are to be.
    """
    report = Report(signed=key is not None)
    snapshot = _snapshot(ledger)
    starts = {row["id"]: 0 for row in snapshot.accounts}
    report.heads = {row["id"]: (row["seq"], row["head"]) for row in snapshot.accounts}
    report.checkpoints = sum(map(len, snapshot.checkpoints.values()))
    if key is not None:
        report.bad += _check_signatures(ledger.id, key, snapshot, sign_new=sign_new)
        if not full and report.fine:
            for account, rows in snapshot.checkpoints.items():
                starts[account] = rows[-1]["seq"]
    report.accounts, report.trusted = len(starts), sum(starts.values())
    report.entries = snapshot.entries - report.trusted
    report.reservations = snapshot.reservations

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, report.entries)

    posts = 0
    for row in snapshot.accounts:
        check = AccountCheck(ledger.database, snapshot, row, starts[row["id"]])
        report.bad += check.read(tell)
        posts += check.posts
    if snapshot.entries != sum(row["seq"] for row in snapshot.accounts):
        what = (
            f"the journal has {snapshot.entries} entries, the accounts tell of others"
        )
        report.bad.append(Finding(problem=what))
    report.bad += _check_terms(snapshot)
    if not report.trusted and report.fine and posts != snapshot.posts:
        found = list(_bad_reservations(ledger))
        what = "reservations and journal do not agree on who reserved what"
        report.bad += found or [Finding(problem=what)]
    report.bad += _check_lists(ledger, report)
    report.bad += _check_releases(ledger, report)
    report.bad += _check_witness(ledger, report)
    if sign and key is not None and report.fine:
        sign_heads(ledger, key, snapshot.accounts)
    return report


def sign_heads(ledger: Ledger, key: bytes, accounts: Sequence[Row]) -> None:
    """Sign the newest entry of each account, as it was when it was verified."""
    with ledger.writing({row["dataset"] for row in accounts}) as session:
        lines = [
            sign_entry(
                session,
                key,
                ledger=ledger.id,
                account=row["id"],
                seq=row["seq"],
                digest=row["head"],
                at=now(),
            )
            for row in accounts
        ]
    ledger.watch.tell([line for line in lines if line is not None])


def _snapshot(ledger: Ledger) -> Snapshot:
    with ledger.database.read() as session:
        accounts = session.rows("list_accounts", dataset=None)
        number, posts = _posts_told(session)
        return Snapshot(
            accounts=accounts,
            terms={
                (row["dataset"], row["number"]): row
                for row in session.rows("term_pins")
            },
            checkpoints={
                row["id"]: found
                for row in accounts
                if (found := session.rows("checkpoints_of_account", account=row["id"]))
            },
            entries=session.rows("count_entries")[0]["number"],
            reservations=number,
            posts=posts,
        )


def _check_signatures(
    ledger: str, key: bytes, snapshot: Snapshot, *, sign_new: bool
) -> Iterator[Finding]:
    for row in snapshot.accounts:
        account = row["id"]
        rows = snapshot.checkpoints.get(account, [])
        if not rows:
            if sign_new:
                continue
            what = (
                "it has no signed checkpoint: it was opened without the key, or its "
                "checkpoints were removed. If it is known to be right, sign it with "
                "`dpflow ledger checkpoint`"
            )
            yield Finding(problem=what, account=account)
            continue
        seq = forged(key, ledger, account, rows)
        if seq is not None:
            what = "its checkpoint was forged, or signed with another key"
            yield Finding(problem=what, account=account, entry=seq)
        elif rows[-1]["seq"] > row["seq"]:
            what = f"it was signed, and the journal ends at {row['seq']}"
            yield Finding(problem=what, account=account, entry=rows[-1]["seq"])


def _check_terms(snapshot: Snapshot) -> Iterator[Finding]:
    for (dataset, number), row in snapshot.terms.items():
        if digest(row["pinned"]) != row["policy_hash"]:
            what = (
                f"the pinned policy of term {number} of dataset {dataset!r} was edited"
            )
            yield Finding(problem=what)


def _posts_told(session: Session) -> tuple[int, int]:
    """Return how many reservations there are, and the sum that `Replay.posts` names."""
    known: dict[str, list[str]] = {}
    total = 0
    number, low = 0, ""
    while rows := session.rows("reservations_after", above=low, limit=_PAGE):
        for row in rows:
            name, text, end = row["id"], row["accounts"], _ENDS[row["state"]]
            accounts = known.get(text)
            if accounts is None:
                accounts = known[text] = json.loads(text)
            for account in accounts:
                total += hash((account, name, "reserve"))
                if end is not None:
                    total += hash((account, name, end))
        number, low = number + len(rows), rows[-1]["id"]
    return number, total


def _bad_reservations(ledger: Ledger) -> Iterator[Finding]:
    """Name the reservations whose state or accounts the journal does not tell."""
    with ledger.database.read() as session:
        orphans = session.rows("orphans")
    for row in orphans:
        what = f"it reserves for {row['reservation']}, which no table knows"
        yield Finding(problem=what, account=row["account"], entry=row["seq"])
    low = ""
    while True:
        with ledger.database.read() as session:
            page = session.rows("reservations_after", above=low, limit=_PAGE)
            if not page:
                return
            low, high = page[0]["id"], page[-1]["id"]
            rows = session.rows("reservation_posts", low=low, high=high)
        for row in rows:
            number = len(set(json.loads(row["accounts"])))
            end = _ENDS[row["state"]]
            wanted = (number, 0 if end is None else number, end, end)
            names = ("reserved", "ended", "first_end", "last_end")
            if tuple(row[name] for name in names) != wanted:
                yield Finding(problem=_reservation_problem(row, number))
        low = high


def _reservation_problem(row: Row, number: int) -> str:
    ends = " and ".join(
        filter(None, dict.fromkeys((row["first_end"], row["last_end"])))
    )
    return (
        f"reservation {row['id']} is {row['state']} on {number} accounts, but the "
        f"journal reserves it on {row['reserved']} and ends it on {row['ended']}"
        f"{f' ({ends})' if ends else ''}"
    )


def _check_releases(ledger: Ledger, report: Report) -> Iterator[Finding]:
    place = ""
    while True:
        with ledger.database.read() as session:
            rows = session.rows("releases_after", above=place, limit=_RELEASES)
        if not rows:
            return
        report.releases += len(rows)
        for row in rows:
            if not _is_release(row):
                what = f"release {row['release_key']} is not the value that was kept"
                yield Finding(problem=what)
        place = rows[-1]["release_key"]


def _is_release(row: Row) -> bool:
    """Say whether a release has its charge's key, and the digest that was settled."""
    if row["value"] is not None and digest(row["value"]) != row["digest"]:
        return False
    if row["charged_key"] != row["release_key"]:
        return False
    if row["state"] != "settled":
        return row["value"] is None
    # Its body tells the digest, and the journal's hashes cover that.
    return row["settled"] is not None and (
        json.loads(row["settled"]).get("digest") == row["digest"]
    )


def _check_lists(ledger: Ledger, report: Report) -> Iterator[Finding]:
    """Compare what halts runs, and what the history lists, with the journal."""
    if report.trusted:
        return
    with ledger.database.read() as session:
        forgotten, hidden = session.rows("forgotten_refusals"), session.rows("unlisted")
    for row in hidden:
        what = "it was taken off the order of all entries, and no history shows it"
        yield Finding(problem=what, account=row["account"], entry=row["seq"])
    for row in forgotten:
        what = f"run {row['run']} was refused here, and that it was is forgotten"
        yield Finding(problem=what, account=row["account"], entry=row["seq"])


def _check_witness(ledger: Ledger, report: Report) -> Iterator[Finding]:
    """Compare with the witness, which remembers what a rollback would hide."""
    witness = ledger.watch.witness
    if witness is None:
        return
    if not witness.exists():
        report.witness = "missing"
        return
    report.witness = "agrees"
    lines = witness.all_lines()
    with ledger.database.read() as session:
        gone = missing(session, lines)
    for line in gone[:1]:
        report.witness = "contradicts"
        what = (
            f"the witness {witness.place} saw {len(gone)} charges or signed "
            "checkpoints that are not here, this one first; `dpflow ledger reconcile` "
            "charges them again"
        )
        account = line.account.removeprefix(WITNESSED)
        entry = line.seq if account == line.account else None
        yield Finding(problem=what, account=account, entry=entry)
