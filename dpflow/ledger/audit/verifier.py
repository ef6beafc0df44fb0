"""Verify a bundle of evidence of a dpflow ledger, offline, with Python alone.

Usage: python -I verify.py [BUNDLE] [--key-file FILE] [--earlier BUNDLE] [--json]

BUNDLE is a zip file or the folder that it was unpacked to; default: the folder of this
file. It runs the files of the folder `dpflow` beside it, which are those that the
ledger itself runs; an auditor who trusts nobody takes them from elsewhere, with this
one. It recomputes the hash of each file and of each entry, follows every journal,
compares every reservation with the threshold that was pinned then, each policy with its
hash, the sums with those that the ledger kept, and checkpoints with the journal and,
given the ledger's public key, with who signed them. It does not price costs again,
which needs dpflow, and it cannot tell that the newest entries were cut off, unless a
signature or an earlier bundle tells of them.

Exit code: 0 all agrees, 1 something does not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Python looks in no folder by itself where it was told to trust none.
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from dpflow.ledger.audit.fold import Fold
from dpflow.ledger.audit.pinned import (
    Data,
    check_tighter,
    gate_rule,
    is_pinned,
    kept_beside,
    rule_of,
    thresholds,
)
from dpflow.ledger.checkpoint import forged, miscounted
from dpflow.ledger.ed25519 import public_key, verifies
from dpflow.ledger.entry import Columns, Entry, canonical
from dpflow.ledger.rows import (
    Account,
    Charge,
    JournalError,
    Key,
    Row,
    Term,
    book_of,
    name_of_term,
)

FORMAT = "dpflow evidence 2"
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
JOURNAL, ACCOUNTS = "journal.jsonl", "accounts.json"
#: The columns of an entry, and of an account.
ENTRY = (*Columns._fields, "hash")
ACCOUNT = ("id", "dataset", "entry", "settled", "held", "overdrawn")
#: What stands before a grant where its digest is made.
GRANT = "dpflow grant 1"
#: What a grant and the term that was opened under it must have in common.
_GRANTED = ("source", "unit", "relation")
#: What reading garbage raises.
_UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)


class BadError(Exception):
    """Something in the bundle does not agree."""


def read_bundle(place: Path) -> dict[str, bytes]:
    """Return the files of a bundle by name."""
    if place.is_dir():
        paths = (path for path in place.rglob("*") if path.is_file())
        found = {path.relative_to(place).as_posix(): path for path in paths}
        return {
            name: path.read_bytes()
            for name, path in found.items()
            if "__pycache__" not in name
        }
    with zipfile.ZipFile(place) as archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            msg = "the archive holds a name twice"
            raise BadError(msg)
        return {name: archive.read(name) for name in names}


class Verifier:
    """Checks one bundle; what it finds good it says, what is bad it collects."""

    def __init__(self, files: dict[str, bytes], key: bytes | None) -> None:
        self.files, self.key = files, key
        self.bad: list[str] = []
        self.said: list[str] = []
        self.manifest: dict[str, Any] = {}
        self.fold = Fold(seen=self._seen)
        #: Hash of each entry, by dataset and number.
        self.hashes: dict[str, dict[int, str]] = {}
        #: What the checkpoints of a dataset say.
        self.points: dict[str, list[Data]] = {}
        #: What the entries that opened a term say, and those that gave budget away.
        self.opened: dict[tuple[str, int], Data] = {}
        self.given: list[tuple[str, Data]] = []
        self.checked: dict[str, int] = {}
        #: Preflights of which something was drawn.
        self.drawn: set[str] = set()

    @property
    def entries(self) -> int:
        """How many entries were read."""
        return sum(map(len, self.hashes.values()))

    def run(self, earlier: dict[str, bytes] | None = None) -> None:
        """Check everything; a step that fails does not keep others from running."""
        steps = [self._manifest, self._signature, self._journal, self._rows]
        steps += [self._policies, self._grants, self._checkpoints]
        if earlier is not None:
            steps.append(lambda: self._earlier(earlier))
        for step in steps:
            try:
                step()
            except BadError as problem:
                self.bad.append(str(problem))
            except _UNREADABLE as error:
                name = getattr(step, "__name__", "earlier").strip("_")
                self.bad.append(f"{name} cannot be read ({type(error).__name__})")

    def _manifest(self) -> None:
        self.manifest = json.loads(self.files[MANIFEST])
        if self.manifest["format"] != FORMAT:
            msg = f"the format is {self.manifest['format']!r}, this reads {FORMAT!r}"
            raise BadError(msg)
        listed = self.manifest["files"]
        for name in sorted(listed.keys() | self.files.keys() - {MANIFEST, SIGNATURE}):
            if name not in self.files:
                self.bad.append(f"file {name} is missing")
            elif name not in listed:
                self.bad.append(f"file {name} is not in the manifest")
            elif sha256(self.files[name]).hexdigest() != listed[name]["sha256"]:
                self.bad.append(f"file {name} is not what the manifest says")
        made = f"ledger {self.manifest['ledger']}, {self.manifest['created_at']}"
        self.said.append(
            f"bundle: {made}, dpflow {self.manifest['versions']['dpflow']}"
        )
        self.said.append(f"files: {len(listed)} in the manifest")

    def _signature(self) -> None:
        signed = self.files.get(SIGNATURE)
        if self.key is None:
            what = "there, not checked: no key" if signed else "none"
        elif signed is None:
            msg = "a key was given, and the manifest is not signed"
            raise BadError(msg)
        else:
            if not verifies(self.key, self.files[MANIFEST], signed):
                msg = "the manifest was not signed with this key, or changed since"
                raise BadError(msg)
            what = "agrees"
        self.said.append(f"signature of the manifest: {what}")

    # The journal

    def _journal(self) -> None:
        for line in self.files[JOURNAL].splitlines():
            row = json.loads(line)
            book, number = row["book"], row["number"]
            if book in self.fold.bad:
                continue
            hashes = self.hashes.setdefault(book, {})
            if self.fold.read(book, [[row[name] for name in ENTRY]]):
                hashes[number] = row["hash"]
        self.fold.end()
        for book, (number, what) in self.fold.bad.items():
            self.bad.append(f"dataset {book!r}, entry {number}: {what}")
        accounts = sum(isinstance(row, Account) for row in self.fold.rows.values())
        self.said.append(
            f"journal: {self.entries} entries of {accounts} accounts were followed"
        )

    def _seen(self, rows: Mapping[Key, Row], entry: Entry) -> None:
        """Check a decision beside what was before it."""
        if entry.kind == "reserve":
            self._check_granted(rows, entry)
        elif entry.kind == "void" and entry.charge in self.drawn:
            what = "it voids a preflight of which something was drawn"
            raise JournalError(what)
        elif entry.kind == "open":
            self.opened[entry.book, entry.body["term"]["number"]] = entry.body
        elif entry.kind == "tighten":
            check_tighter(rows, entry)
        elif entry.kind == "prior" and "grant" in entry.body:
            self.given.append((entry.book, entry.body))
        elif entry.kind == "checkpoint":
            self.points.setdefault(entry.book, []).append(entry.body["signed"])

    def _check_granted(self, rows: Mapping[Key, Row], entry: Entry) -> None:
        if book_of(rows, entry.book).frozen is not None:
            what = "a step was granted while its dataset was frozen"
            raise JournalError(what)
        if "preflight" in entry.body:
            self.drawn.add(entry.body["preflight"]["id"])
        term = rows.get(("term", entry.book, str(book_of(rows, entry.book).terms)))
        kept = kept_beside(rows, term.facts, entry) if isinstance(term, Term) else []
        for name, (_, settled, held) in entry.postings.items():
            limits = thresholds(rule_of(rows, name), len(held))
            if limits is None:
                continue
            total = [a + b for a, b in zip(settled, held, strict=True)]
            if kept and name.partition("#")[2] == name_of_term(name):
                total = [a + b for a, b in zip(total, kept, strict=True)]
            if any(a > b for a, b in zip(total, limits, strict=True)):
                what = f"it was granted at {total}, the threshold was {limits}"
                raise JournalError(what)
            self.checked[name] = self.checked.get(name, 0) + 1

    def _rows(self) -> None:
        listed = json.loads(self.files[ACCOUNTS])
        rows = {row["id"]: row for row in listed}
        if len(rows) != len(listed):
            self.bad.append("an account is listed twice")
        found = {
            row.id: row for row in self.fold.rows.values() if isinstance(row, Account)
        }
        for name in sorted(rows.keys() | found.keys()):
            row, account = rows.get(name), found.get(name)
            if row is None or account is None:
                self.bad.append(f"account {name!r} is not in all files")
                continue
            sums = [tuple(json.loads(row[each])) for each in ("settled", "held")]
            agreeing = {
                "end": row["entry"] == account.entry,
                "sums": sums == [account.settled, account.held],
                "state": bool(row["overdrawn"]) == account.overdrawn
                and not self._hides_overdraft(account),
            }
            for what in (what for what, same in agreeing.items() if not same):
                self.bad.append(f"account {name!r}: its {what} is not its journal's")
        for book, (number, head) in self.manifest["heads"].items():
            known = self.hashes.get(book, {})
            if len(known) != number or known.get(number) != head:
                self.bad.append(f"dataset {book!r}: its end is not its journal's")
        for book in self.hashes.keys() - self.manifest["heads"].keys():
            self.bad.append(f"dataset {book!r} is not in all files")

    def _hides_overdraft(self, account: Account) -> bool:
        """Say whether an account is above the thresholds that its term began with."""
        opened = self.opened.get((account.book, int(name_of_term(account.id))))
        rule = {} if opened is None else gate_rule(opened["term"], account.id)
        limits = thresholds(rule, len(account.held))
        if limits is None or account.overdrawn:
            return False
        total = [a + b for a, b in zip(account.settled, account.held, strict=True)]
        return any(a > b for a, b in zip(total, limits, strict=True))

    # Policies and grants

    def _policies(self) -> None:
        terms = [row for row in self.fold.rows.values() if isinstance(row, Term)]
        for term in terms:
            name = f"term {term.number} of dataset {term.book!r}"
            facts = term.facts
            text = canonical(facts["pinned"])
            if sha256(text.encode()).hexdigest() != facts["policy_hash"]:
                self.bad.append(f"{name}: its policy is not what was pinned")
            for place in facts["gates"]:
                if not is_pinned(facts, place):
                    self.bad.append(f"{name}: its gate {place!r} is not its policy's")
        self.said.append(f"policies: {len(terms)} terms")

    def _grants(self) -> None:
        """Check the budget that was given by another ledger, or to one."""
        for (book, number), body in self.opened.items():
            taken = body.get("grant") or body["term"].get("grant")
            charged = book_of(self.fold.rows, book).ran.get(str(number), 0)
            if taken is not None and charged:
                problem = self._taken(taken, body)
                if problem:
                    self.bad.append(f"term {number} of dataset {book!r}: its {problem}")
        for book, body in self.given:
            problem = self._given(body)
            if problem:
                self.bad.append(f"dataset {book!r}: a grant that it gave {problem}")

    def _taken(self, grant: Data, body: Data) -> str | None:
        """Return what is wrong with a grant under which a term was charged."""
        pinned = body["term"]["pinned"]
        if grant["taker"] != self.manifest["ledger"]:
            return f"grant is for ledger {grant['taker']}"
        if grant["environment"] not in (None, self.manifest["environment"]):
            return f"grant is for the environment {grant['environment']!r}"
        if any(grant[each] != pinned.get(each) for each in _GRANTED):
            return "grant is for another guarantee than its term's"
        lifetime = body.get("lifetime") or {}
        limits = ("epsilon", "delta")
        if any(
            each not in lifetime or Fraction(lifetime[each]) > Fraction(grant[each])
            for each in limits
        ):
            return "grant is below its lifetime"
        return None

    def _given(self, body: Data) -> str | None:
        """Return what is wrong with the charge of a part that was carved."""
        grant = body["grant"]
        if grant["giver"] != self.manifest["ledger"]:
            return f"is of ledger {grant['giver']}"
        text = canonical([GRANT, grant])
        if sha256(text.encode()).hexdigest() != body["evidence_sha256"]:
            return "is not what its digest tells"
        told = [body["cost"].get(each) for each in ("epsilon", "delta")]
        if told != [grant["epsilon"], grant["delta"]]:
            return "is not what was charged for it"
        return None

    # Signatures, and earlier bundles

    def _checkpoints(self) -> None:
        for book in self.hashes:
            self._check_points(book, self.points.get(book, []))
        how = "checked" if self.key is not None else "not checked: no key"
        number = sum(map(len, self.points.values()))
        self.said.append(f"checkpoints: {number}, signatures {how}")

    def _check_points(self, book: str, points: list[Data]) -> None:
        where = f"dataset {book!r}, checkpoint of entry"
        for point in points:
            number = point["number"]
            if self.hashes[book].get(number) != point["hash"]:
                self.bad.append(f"{where} {number}: the journal holds something else")
        wrong = miscounted(points)
        if wrong is not None:
            self.bad.append(f"{where} {wrong}: those before it are not all there")
        if self.key is None:
            return
        if not points:
            self.bad.append(f"dataset {book!r} has no signed checkpoint")
        wrong = forged(
            partial(verifies, self.key), self.manifest["ledger"], book, points
        )
        if wrong is not None:
            self.bad.append(f"{where} {wrong}: forged, or signed with another key")

    def _earlier(self, files: dict[str, bytes]) -> None:
        manifest = json.loads(files[MANIFEST])
        if manifest["ledger"] != self.manifest["ledger"]:
            msg = "the earlier bundle is of another ledger"
            raise BadError(msg)
        for book, (number, head) in manifest["heads"].items():
            if self.hashes.get(book, {}).get(number) != head:
                what = f"entry {number} of the earlier bundle is not in this one"
                self.bad.append(f"dataset {book!r}: {what}")
        self.said.append(f"earlier bundle: {len(manifest['heads'])} datasets go on")

    def totals(self) -> Iterator[dict[str, Any]]:
        """Yield the totals of each account, in the units of its tally."""
        rows = self.fold.rows
        held = [name for row in rows.values() for name in _holding(row)]
        accounts = (row for row in rows.values() if isinstance(row, Account))
        for account in sorted(accounts, key=lambda row: row.id):
            rule = rule_of(rows, account.id)
            yield {
                "account": account.id,
                **{each: rule.get(each) for each in ("theorem", "epsilon", "delta")},
                "settled": list(account.settled),
                "held": list(account.held),
                "open": held.count(account.id),
                "thresholds": thresholds(rule, len(account.held)),
                "checked": self.checked.get(account.id, 0),
            }


def _holding(row: Row) -> list[str]:
    """Return the accounts on which an open charge holds something."""
    if isinstance(row, Charge) and row.state == "open":
        return list(row.held)
    return []


def main(arguments: list[str] | None = None) -> int:
    """Verify a bundle and say what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle", nargs="?", type=Path, metavar="BUNDLE")
    parser.add_argument("--key-file", type=_key, metavar="FILE", help=_KEY_HELP)
    parser.add_argument("--earlier", type=Path, metavar="BUNDLE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        earlier = None if given.earlier is None else read_bundle(given.earlier)
        files = read_bundle(given.bundle or Path(__file__).resolve().parent)
    except OSError as error:
        parser.error(str(error))
    except (BadError, zipfile.BadZipFile) as error:
        sys.stdout.write(f"BAD: {error}\n")
        return 1
    verifier = Verifier(files, given.key_file)
    verifier.run(earlier)
    report(verifier, as_json=given.json)
    return 1 if verifier.bad else 0


_KEY_HELP = "the ledger's public key in PEM; checks who signed"


def _key(place: str) -> bytes:
    try:
        return public_key(Path(place).read_bytes())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def report(verifier: Verifier, *, as_json: bool) -> None:
    """Print what was verified, and what is bad."""
    totals = list(verifier.totals())
    if as_json:
        told = {"fine": not verifier.bad, "bad": verifier.bad, "accounts": totals}
        sys.stdout.write(json.dumps({**told, "said": verifier.said}, indent=2) + "\n")
        return
    lines = [*verifier.said]
    for each in totals:
        limit = each["thresholds"] or "needs dpflow"
        lines.append(
            f"account {each['account']}: {each['theorem']} epsilon {each['epsilon']} "
            f"delta {each['delta']}; settled {each['settled']}, held {each['held']} in "
            f"{each['open']} reservations; threshold {limit}, {each['checked']} granted"
        )
    lines += [f"BAD: {problem}" for problem in verifier.bad]
    if not verifier.bad:
        lines.append("OK: all of this agrees. Amounts are in units of 1e-36.")
    sys.stdout.write("\n".join(map(_printable, lines)) + "\n")


def _printable(line: str) -> str:
    """Keep a name in a bundle from writing lines of its own, or over others."""
    return "".join(sign if sign.isprintable() else "?" for sign in line)


if __name__ == "__main__":
    raise SystemExit(main())
