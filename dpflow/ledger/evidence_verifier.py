"""Verify a bundle of evidence of a dpflow ledger, offline, with Python alone.

Usage: python verify.py [BUNDLE] [--key-file FILE] [--earlier BUNDLE] [--json]

BUNDLE is a zip file or the folder that it was unpacked to; default: the folder of this
file. An auditor who trusts nobody takes this file from elsewhere. It recomputes
the hash of each file, the hash chain and the running sums of each account; it compares
every reservation with the threshold that was pinned then, each policy with its hash,
and checkpoints with the journal and, given the key, with who signed them; it follows
what was drawn from preflights, and what other ledgers were given. It does not price
costs again, which needs dpflow, and it cannot tell that the newest entries were cut
off, unless a signature or an earlier bundle tells of them.

Exit code: 0 all agrees, 1 something does not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpflow.ledger.evidence_journal import (
    Account,
    BadError,
    canonical,
    forged,
    miscounted,
    sha256,
)

FORMAT = "dpflow evidence 1"
MANIFEST, SIGNATURE = "manifest.json", "manifest.hmac"
JOURNAL, ACCOUNTS = "journal.jsonl", "accounts.json"
POLICIES, CHECKPOINTS = "policies.json", "checkpoints.json"
KEY_VARIABLE = "DPFLOW_LEDGER_KEY"
#: What stands before a grant where its digest is made.
GRANT = "dpflow grant 1"
#: What a grant and the term that was opened under it must have in common.
_GRANTED = ("source", "unit", "relation")
#: What reading garbage raises.
_UNREADABLE = (
    *(ArithmeticError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
Row = Mapping[str, Any]


def read_bundle(place: Path) -> dict[str, bytes]:
    """Return the files of a bundle by name."""
    if place.is_dir():
        paths = (path for path in place.rglob("*") if path.is_file())
        return {path.relative_to(place).as_posix(): path.read_bytes() for path in paths}
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
        self.accounts: dict[str, Account] = {}
        self.manifest: dict[str, Any] = {}
        self.terms: dict[tuple[str, int], Any] = {}

    def run(self, earlier: dict[str, bytes] | None = None) -> None:
        """Check everything; a step that fails does not keep others from running."""
        steps = [self._manifest, self._signature, self._journal, self._rows]
        steps += [self._reservations, self._policies, self._grants, self._checkpoints]
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
            elif sha256(self.files[name]) != listed[name]["sha256"]:
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
            found = hmac.new(self.key, self.files[MANIFEST], "sha256").hexdigest()
            if not hmac.compare_digest(found.encode(), signed.strip()):
                msg = "the manifest was not signed with this key, or changed since"
                raise BadError(msg)
            what = "agrees"
        self.said.append(f"signature of the manifest: {what}")

    def _journal(self) -> None:
        broken: set[str] = set()
        for line in self.files[JOURNAL].splitlines():
            row = json.loads(line)
            name = row["account"]
            if name in broken:
                continue
            try:
                self.accounts.setdefault(name, Account(name)).feed(row)
            except BadError as problem:
                # The first bad entry of each account; what follows hangs on it.
                broken.add(name)
                self.bad.append(str(problem))
        for name in self.accounts.keys() - broken:
            try:
                self.accounts[name].end()
            except BadError as problem:
                self.bad.append(str(problem))
        entries = sum(account.seq for account in self.accounts.values())
        self.said.append(
            f"journal: {entries} entries of {len(self.accounts)} accounts were followed"
        )

    def _rows(self) -> None:
        listed = json.loads(self.files[ACCOUNTS])
        rows = {row["id"]: row for row in listed}
        if len(rows) != len(listed):
            self.bad.append("an account is listed twice")
        heads = self.manifest.get("heads", {})
        for name in sorted(rows.keys() | self.accounts.keys() | heads.keys()):
            row, account, head = (
                rows.get(name),
                self.accounts.get(name),
                heads.get(name),
            )
            if row is None or account is None or head is None:
                self.bad.append(f"account {name!r} is not in all files")
                continue
            told = [row["seq"], row["head"]]
            sums = [json.loads(row[each]) for each in ("settled", "held")]
            gate = {**row, "rule": json.loads(row["rule"])}
            agreeing = {
                "end": told == [account.seq, account.hash] == head,
                "sums": sums == [account.settled, account.held],
                "state": (row["state"] == "frozen") == account.frozen
                and not (account.overdrawn and row["state"] == "open"),
                "gate": _gate(account.gate) == _gate(gate),
            }
            for what in (what for what, same in agreeing.items() if not same):
                self.bad.append(f"account {name!r}: its {what} is not its journal's")

    def _policies(self) -> None:
        hashes: dict[tuple[str, int], str] = {}
        for term in json.loads(self.files[POLICIES]):
            name = f"term {term['number']} of dataset {term['dataset']!r}"
            if sha256(term["pinned"].encode()) != term["policy_hash"]:
                self.bad.append(f"{name}: its policy is not what was pinned")
            if (term["dataset"], term["number"]) in hashes:
                self.bad.append(f"{name} is listed twice")
            hashes[term["dataset"], term["number"]] = term["policy_hash"]
            self.terms[term["dataset"], term["number"]] = json.loads(term["pinned"])
        for name, account in self.accounts.items():
            gate = account.gate
            pinned = self.terms.get((gate["dataset"], gate["term"]))
            applied = hashes.get((gate["dataset"], gate["term"]))
            # Each change of a term is told in its dataset's account.
            if gate["kind"] == "dataset" and gate.get("policy", applied) != applied:
                self.bad.append(f"account {name!r}: its policy is not its term's")
            wanted = None if pinned is None else _pinned(pinned, gate)
            if pinned is not None and _taken_off(pinned, gate):
                continue
            rule = gate["rule"]
            names = ("theorem", "epsilon", "delta")
            if wanted is None or any(rule.get(n) != wanted.get(n) for n in names):
                self.bad.append(f"account {name!r}: its gate is not its term's")
        self.said.append(f"policies: {len(self.terms)} terms")

    def _reservations(self) -> None:
        """Check that each reservation has ended alike on all its accounts."""
        ends: dict[str, set[str | None]] = {}
        for account in self.accounts.values():
            for name in account.made:
                ends.setdefault(name, set()).add(account.ends.get(name))
        for name, kinds in ends.items():
            if len(kinds) > 1:
                told = " and ".join(sorted(kind or "open" for kind in kinds))
                self.bad.append(f"reservation {name} ends differently: {told}")

    def _grants(self) -> None:
        """Check the budget that was given by another ledger, or to one."""
        for name, account in self.accounts.items():
            taken = account.gate.get("grant")
            if taken is not None and account.charged:
                pinned = self.terms.get((account.gate["dataset"], account.gate["term"]))
                problem = self._taken(taken, pinned or {}, account.gate)
                if problem:
                    self.bad.append(f"account {name!r}: its grant {problem}")
            for body in account.given:
                problem = self._given(body)
                if problem:
                    self.bad.append(f"account {name!r}: a grant that it gave {problem}")

    def _taken(self, grant: Row, pinned: Row, gate: Row) -> str | None:
        """Return what is wrong with a grant under which a term was charged."""
        if grant["taker"] != self.manifest["ledger"]:
            return f"is for ledger {grant['taker']}"
        if grant["environment"] not in (None, self.manifest["environment"]):
            return f"is for the environment {grant['environment']!r}"
        if any(grant[each] != pinned.get(each) for each in _GRANTED):
            return "is for another guarantee than its term's"
        lifetime = gate.get("lifetime") or {}
        limits = ("epsilon", "delta")
        if any(
            each not in lifetime or Fraction(lifetime[each]) > Fraction(grant[each])
            for each in limits
        ):
            return "is below its lifetime"
        return None

    def _given(self, body: Row) -> str | None:
        """Return what is wrong with the charge of a part that was carved."""
        grant = body["grant"]
        if grant["giver"] != self.manifest["ledger"]:
            return f"is of ledger {grant['giver']}"
        text = canonical([GRANT, grant])
        if sha256(text.encode()) != body["evidence_sha256"]:
            return "is not what its digest tells"
        told = [body["cost"].get(each) for each in ("epsilon", "delta")]
        if told != [grant["epsilon"], grant["delta"]]:
            return "is not what was charged for it"
        return None

    def _checkpoints(self) -> None:
        points: dict[str, list[Row]] = {name: [] for name in self.accounts}
        for point in json.loads(self.files[CHECKPOINTS]):
            points.setdefault(point["account"], []).append(point)
        for name, found in points.items():
            self._checked_points(name, sorted(found, key=lambda point: point["seq"]))
        how = "checked" if self.key is not None else "not checked: no key"
        number = sum(map(len, points.values()))
        self.said.append(f"checkpoints: {number}, signatures {how}")

    def _checked_points(self, name: str, points: list[Row]) -> None:
        account = self.accounts.get(name)
        where = f"account {name!r}, checkpoint of entry"
        for point in points:
            seq = point["seq"]
            if account is None or account.hashes.get(seq) != point["hash"]:
                self.bad.append(f"{where} {seq}: the journal holds something else")
        wrong = miscounted(points)
        if wrong is not None:
            self.bad.append(f"{where} {wrong}: those before it are not all there")
        if self.key is None:
            return
        if not points:
            self.bad.append(f"account {name!r} has no signed checkpoint")
        seq = forged(self.key, self.manifest["ledger"], name, points)
        if seq is not None:
            self.bad.append(f"{where} {seq}: forged, or signed with another key")

    def _earlier(self, files: dict[str, bytes]) -> None:
        manifest = json.loads(files[MANIFEST])
        if manifest["ledger"] != self.manifest["ledger"]:
            msg = "the earlier bundle is of another ledger"
            raise BadError(msg)
        for name, (seq, head) in manifest["heads"].items():
            account = self.accounts.get(name)
            if account is None or account.hashes.get(seq) != head:
                what = f"entry {seq} of the earlier bundle is not in this one"
                self.bad.append(f"account {name!r}: {what}")
        self.said.append(f"earlier bundle: {len(manifest['heads'])} accounts go on")

    def totals(self) -> Iterator[dict[str, Any]]:
        """Yield the totals of each account, in the units of its tally."""
        for name, account in sorted(self.accounts.items()):
            rule = account.gate.get("rule", {})
            yield {
                "account": name,
                **{each: rule.get(each) for each in ("theorem", "epsilon", "delta")},
                "settled": account.settled,
                "held": account.held,
                "open": len(account.open),
                "thresholds": account.thresholds(),
                "checked": account.checked,
            }


def _gate(told: Mapping[str, Any]) -> list[Any]:
    return [told.get(n) for n in ("rule", "halt", "dataset", "term", "kind", "name")]


def _pinned(pinned: Mapping[str, Any], gate: Mapping[str, Any]) -> Any:
    """Return the rule that a term pinned for an account."""
    kind = gate["kind"]
    if kind in ("flow", "odometer"):
        share = pinned["flows"].get(gate["name"], {})
        default = pinned["odometer"] if kind == "odometer" else None
        return share.get("filter" if kind == "flow" else "odometer", default)
    return (pinned.get("whole") if kind == "dataset" else None) or pinned["filter"]


def _taken_off(pinned: Mapping[str, Any], gate: Mapping[str, Any]) -> bool:
    """Say whether a gate is of a flow that may not use the dataset any more."""
    allowed = gate["name"] in pinned["flows"] or pinned["other_flows"] == "allow"
    return gate["kind"] in ("flow", "odometer") and not allowed


def main(arguments: list[str] | None = None) -> int:
    """Verify a bundle and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", nargs="?", type=Path, metavar="BUNDLE")
    parser.add_argument("--key-file", type=Path, help=f"default: {KEY_VARIABLE}")
    parser.add_argument("--earlier", type=Path, metavar="BUNDLE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        key = os.environ.get(KEY_VARIABLE, "").encode() or None
        if given.key_file is not None:
            key = given.key_file.read_bytes().strip()
        earlier = None if given.earlier is None else read_bundle(given.earlier)
        files = read_bundle(given.bundle or Path(__file__).resolve().parent)
    except OSError as error:
        parser.error(str(error))
    except (BadError, zipfile.BadZipFile) as error:
        sys.stdout.write(f"BAD: {error}\n")
        return 1
    verifier = Verifier(files, key)
    verifier.run(earlier)
    report(verifier, as_json=given.json)
    return 1 if verifier.bad else 0


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
