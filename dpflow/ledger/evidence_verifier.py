"""Verify a bundle of evidence of a dpflow ledger, offline, with Python alone.

Usage: python verify.py [BUNDLE] [--key-file FILE] [--earlier BUNDLE] [--json]

BUNDLE is a zip file or the folder that it was unpacked to; default: the folder of this
file. An auditor who trusts nobody takes this file from elsewhere. It recomputes
the hash of each file, the hash chain and the running sums of each account; it compares
every reservation with the threshold that was pinned then, each policy with its hash,
and checkpoints with the journal and, given the key, with who signed them. It does not
price costs again, which needs dpflow, and it cannot tell that the newest entries were
cut off, unless a signature or an earlier bundle tells of them.

Exit code: 0 all agrees, 1 something does not, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FORMAT = "dpflow evidence 1"
MANIFEST, SIGNATURE = "manifest.json", "manifest.hmac"
JOURNAL, ACCOUNTS = "journal.jsonl", "accounts.json"
POLICIES, CHECKPOINTS = "policies.json", "checkpoints.json"
Row = Mapping[str, Any]
Body = dict[str, Any]
KEY_VARIABLE = "DPFLOW_LEDGER_KEY"
_RAISING = ("amend", "prior", "repair")
_ENDING = ("settle", "void", "forfeit")


class BadError(Exception):
    """Something in the bundle does not agree."""


def canonical(data: object) -> str:
    """Write JSON in the form that is hashed."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(data: bytes) -> str:
    """Return a digest in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


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


def _sum(one: list[int], other: list[int], sign: int = 1) -> list[int]:
    return [a + sign * b for a, b in zip(one, other, strict=True)]


class Account:
    """One account, followed from its first entry."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seq, self.hash, self.checked, self.frozen = 0, "", 0, False
        self.settled: list[int] = []
        self.held: list[int] = []
        self.open: dict[str, list[int]] = {}
        self.gate: dict[str, Any] = {}
        self.hashes: dict[int, str] = {}

    def feed(self, row: Row) -> None:
        """Follow one entry."""
        if row["seq"] != self.seq + 1:
            self._bad(row, f"entry {self.seq + 1} is missing or out of order")
        if (row["kind"] == "open") != (self.seq == 0):
            self._bad(row, "an account is opened by its first entry, once")
        body = json.loads(row["body"])
        self._move(row, self._amounts(row, "amount"), body)
        after = [self._amounts(row, f"{name}_after") for name in ("settled", "held")]
        if after != [self.settled, self.held]:
            self._bad(row, f"it says {after}, the sums are {self.settled, self.held}")
        text = self.hash + canonical({k: v for k, v in row.items() if k != "hash"})
        if sha256(text.encode()) != row["hash"]:
            self._bad(row, "its content, or an entry before it, is not what was hashed")
        self.seq, self.hash = row["seq"], row["hash"]
        self.hashes[self.seq] = self.hash
        if row["kind"] == "reserve":
            self._check_threshold(row)

    def thresholds(self) -> list[int] | None:
        """Return the pinned thresholds; None if the theorem has none of this form."""
        found = self.gate.get("rule", {}).get("thresholds")
        whole = isinstance(found, list) and len(found) == len(self.settled)
        if not whole or not all(isinstance(each, int) for each in found):
            return None
        return list(found)

    def _check_threshold(self, row: Row) -> None:
        limits = self.thresholds()
        if limits is None:
            return
        total = _sum(self.settled, self.held)
        if any(a > b for a, b in zip(total, limits, strict=True)):
            self._bad(row, f"it was granted at {total}, the threshold was {limits}")
        self.checked += 1

    def _move(self, row: Row, amount: list[int], body: Body) -> None:
        kind, name = row["kind"], row["reservation"]
        if kind == "reserve":
            if name in self.open:
                self._bad(row, "its reservation was made before")
            self.open[name] = amount
            self.held = _sum(self.held, amount)
        elif kind in _ENDING:
            whole = self._reserved(row)
            if kind != "settle" and amount != whole:
                self._bad(row, "it ends a reservation with another amount")
            self.held = _sum(self.held, whole, -1)
            self.settled = _sum(self.settled, amount, int(kind != "void"))
        elif kind in _RAISING:
            self.settled = _sum(self.settled, amount)
        elif kind in ("draw", "seal"):
            rest = self._reserved(row)
            if kind == "draw":
                self.open[name] = _sum(rest, amount, -1)
                self.settled = _sum(self.settled, amount)
            self.held = _sum(self.held, amount if kind == "draw" else rest, -1)
        else:
            self._mark(row, amount, body)
        if min(*self.held, *self.open.get(name, [0]), 0) < 0:
            self._bad(row, "less than nothing would be held")

    def _mark(self, row: Row, amount: list[int], body: Body) -> None:
        kind = row["kind"]
        if kind == "open":
            self.settled = self.held = [0] * len(amount)
            self.gate = body
        elif kind == "tighten":
            self.gate = {**self.gate, "rule": body["rule"], "halt": body["halt"]}
        elif kind in ("freeze", "thaw"):
            self.frozen = kind == "freeze"
        elif kind != "refuse":
            self._bad(row, f"no entry is of kind {kind!r}")

    def _reserved(self, row: Row) -> list[int]:
        if row["reservation"] not in self.open:
            self._bad(row, "it ends a reservation that is not open")
        return self.open.pop(row["reservation"])

    def _amounts(self, row: Row, name: str) -> list[int]:
        found = json.loads(row[name])
        same = self.seq == 0 or len(found) == len(self.settled)
        if not found or not same or any(type(e) is not int or e < 0 for e in found):
            self._bad(row, f"its {name} is no amount of this account")
        return list(found)

    def _bad(self, row: Row, problem: str) -> None:
        msg = f"account {self.name!r}, entry {row['seq']}: {problem}"
        raise BadError(msg)


class Verifier:
    """Checks one bundle; what it finds good it says, what is bad it collects."""

    def __init__(self, files: dict[str, bytes], key: bytes | None) -> None:
        self.files, self.key = files, key
        self.bad: list[str] = []
        self.said: list[str] = []
        self.accounts: dict[str, Account] = {}
        self.manifest: dict[str, Any] = {}

    def run(self, earlier: dict[str, bytes] | None = None) -> None:
        """Check everything; a step that fails does not keep others from running."""
        steps = [self._manifest, self._signature, self._journal, self._rows]
        steps += [self._policies, self._checkpoints]
        if earlier is not None:
            steps.append(lambda: self._earlier(earlier))
        for step in steps:
            try:
                step()
            except BadError as problem:
                self.bad.append(str(problem))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
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
        entries = sum(account.seq for account in self.accounts.values())
        self.said.append(
            f"journal: {entries} entries of {len(self.accounts)} accounts were followed"
        )

    def _rows(self) -> None:
        rows = {row["id"]: row for row in json.loads(self.files[ACCOUNTS])}
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
                "state": (row["state"] == "frozen") == account.frozen,
                "gate": _gate(account.gate) == _gate(gate),
            }
            for what in (what for what, same in agreeing.items() if not same):
                self.bad.append(f"account {name!r}: its {what} is not its journal's")

    def _policies(self) -> None:
        terms = {}
        for term in json.loads(self.files[POLICIES]):
            name = f"term {term['number']} of dataset {term['dataset']!r}"
            if sha256(term["pinned"].encode()) != term["policy_hash"]:
                self.bad.append(f"{name}: its policy is not what was pinned")
            terms[term["dataset"], term["number"]] = json.loads(term["pinned"])
        for name, account in self.accounts.items():
            gate = account.gate
            pinned = terms.get((gate["dataset"], gate["term"]))
            wanted = None if pinned is None else _pinned(pinned, gate)
            rule = gate["rule"]
            names = ("theorem", "epsilon", "delta")
            if wanted is None or any(rule.get(n) != wanted.get(n) for n in names):
                self.bad.append(f"account {name!r}: its gate is not its term's")
        self.said.append(f"policies: {len(terms)} terms")

    def _checkpoints(self) -> None:
        points = json.loads(self.files[CHECKPOINTS])
        for point in points:
            name, seq = point["account"], point["seq"]
            where = f"account {name!r}, checkpoint of entry {seq}"
            account = self.accounts.get(name)
            if account is None or account.hashes.get(seq) != point["hash"]:
                self.bad.append(f"{where}: the journal holds something else")
            if self.key is not None:
                text = canonical([self.manifest["ledger"], name, seq, point["hash"]])
                found = hmac.new(self.key, text.encode(), "sha256").hexdigest()
                if not hmac.compare_digest(found, point["signature"]):
                    self.bad.append(f"{where}: forged, or signed with another key")
        if self.key is not None:
            for name in sorted(self.accounts.keys() - {p["account"] for p in points}):
                self.bad.append(f"account {name!r} has no signed checkpoint")
        how = "checked" if self.key is not None else "not checked: no key"
        self.said.append(f"checkpoints: {len(points)}, signatures {how}")

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
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
