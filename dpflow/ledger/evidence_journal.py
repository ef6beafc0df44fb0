"""One account of a bundle of evidence, followed with Python alone.

A bundle holds it and `evidence_verifier.py` as one file.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, NoReturn

Row = Mapping[str, Any]
Body = dict[str, Any]
_RAISING = ("amend", "prior", "repair")
_ENDING = ("settle", "void", "forfeit", "seal")
#: Of those, the ones that post nothing.
_RETURNING = ("void", "seal")


class BadError(Exception):
    """Something in the bundle does not agree."""


def canonical(data: object) -> str:
    """Write JSON in the form that is hashed."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(data: bytes) -> str:
    """Return a digest in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _sum(one: list[int], other: list[int], sign: int = 1) -> list[int]:
    return [a + sign * b for a, b in zip(one, other, strict=True)]


class Held:
    """One open reservation on an account.

    Attributes:
        rest: What it holds: all that was reserved, without what was drawn of it.
        covers: The flow run that it holds, if it is a preflight.
        drawn: Whether something was drawn of it.
    """

    def __init__(self, amount: list[int], covers: object) -> None:
        self.rest, self.covers, self.drawn = amount, covers, False


class Account:
    """One account, followed from its first entry.

    What each kind of entry does to (settled, held):

        open, refuse, tighten, freeze, thaw   nothing
        reserve                               held + amount
        settle                                held - reserved, settled + amount
        forfeit                               held - reserved, settled + reserved
        void                                  held - reserved
        draw                                  held - amount; its step's reserve follows
        seal                                  held - what was not drawn
        amend, prior, repair                  settled + amount

    Attributes:
        open: Its open reservations.
        made: All reservations that were ever made on it.
        ends: The kind of entry that ended each of those that have ended.
        hashes: Of each entry, by its number.
        given: What its `prior` entries say that was carved for other ledgers.
        first: The thresholds that it was opened with, if its theorem has any.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seq, self.hash, self.checked, self.frozen = 0, "", 0, False
        self.settled: list[int] = []
        self.held: list[int] = []
        self.open: dict[str, Held] = {}
        self.made: set[str] = set()
        self.ends: dict[str, str] = {}
        self.gate: dict[str, Any] = {}
        self.hashes: dict[int, str] = {}
        self.given: list[Body] = []
        self.first: list[int] | None = None
        #: A draw, until the next entry holds it for the step.
        self._draw: tuple[Row, Body] | None = None

    @property
    def charged(self) -> bool:
        """Whether anything was ever charged to it."""
        return bool(self.made) or any(self.settled)

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

    def end(self) -> None:
        """Check that nothing is left undone after the last entry."""
        if self._draw is not None:
            self._bad(self._draw[0], "no step holds what it draws")

    @property
    def overdrawn(self) -> bool:
        """Whether it ended above the thresholds that it was opened with."""
        total = _sum(self.settled, self.held)
        limits = total if self.first is None else self.first
        return any(a > b for a, b in zip(total, limits, strict=True))

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
        kind = row["kind"]
        self._check_drawn(row, amount, body)
        if kind == "reserve":
            self._reserve(row, amount, body)
        elif kind == "draw":
            self._take(row, amount, body)
        elif kind in _ENDING:
            self._end(row, amount)
        elif kind in _RAISING:
            self.settled = _sum(self.settled, amount)
            if kind == "prior" and "grant" in body:
                self.given.append(body)
        else:
            self._mark(row, amount, body)
        if min(self.held) < 0:
            self._bad(row, "less than nothing would be held")

    def _check_drawn(self, row: Row, amount: list[int], body: Body) -> None:
        """Check that a draw is held at once by its step, and a step's draw is there."""
        draw, self._draw = self._draw, None
        if draw is not None:
            taken, said = draw
            wanted = ["reserve", said.get("for"), json.loads(taken["amount"])]
            found = [row["kind"], row["reservation"], amount]
            if found != wanted or body.get("preflight") != taken["reservation"]:
                self._bad(row, "the draw before it is not held by its step")
        elif row["kind"] == "reserve" and body.get("drawn") is True and any(amount):
            self._bad(row, "it says that it was drawn, and there is no draw")

    def _reserve(self, row: Row, amount: list[int], body: Body) -> None:
        name = row["reservation"]
        if name in self.made:
            self._bad(row, "its reservation was made before")
        self.made.add(name)
        self.open[name] = Held(amount, body.get("covers"))
        self.held = _sum(self.held, amount)

    def _take(self, row: Row, amount: list[int], body: Body) -> None:
        held = self._reserved(row)
        if held.covers is None:
            self._bad(row, "it draws from a reservation that is no preflight")
        held.rest, held.drawn = _sum(held.rest, amount, -1), True
        if min(held.rest) < 0:
            self._bad(row, "it draws more than its preflight has left")
        self.held = _sum(self.held, amount, -1)
        self._draw = row, body

    def _end(self, row: Row, amount: list[int]) -> None:
        kind, held = row["kind"], self._reserved(row)
        preflight = held.covers is not None
        if kind == ("settle" if preflight else "seal"):
            what = "a preflight" if preflight else "a reservation that is no preflight"
            self._bad(row, f"{what} does not end with a {kind}")
        if kind == "void" and held.drawn:
            self._bad(row, "it voids a preflight of which something was drawn")
        if kind != "settle" and amount != held.rest:
            self._bad(row, "it ends a reservation with another amount")
        self.held = _sum(self.held, held.rest, -1)
        self.settled = _sum(self.settled, amount, int(kind not in _RETURNING))
        self.ends[row["reservation"]] = kind
        del self.open[row["reservation"]]

    def _mark(self, row: Row, amount: list[int], body: Body) -> None:
        kind = row["kind"]
        if kind == "open":
            if any(amount):
                self._bad(row, "an account is opened with nothing in it")
            self.settled = self.held = [0] * len(amount)
            self.gate = body
            self.first = self.thresholds()
        elif kind == "tighten":
            names = ("rule", "halt", "policy")
            told = {name: body[name] for name in names if name in body}
            self.gate = {**self.gate, **told}
        elif kind in ("freeze", "thaw"):
            self.frozen = kind == "freeze"
        elif kind != "refuse":
            self._bad(row, f"no entry is of kind {kind!r}")

    def _reserved(self, row: Row) -> Held:
        if row["reservation"] not in self.open:
            self._bad(row, "it ends or draws from a reservation that is not open")
        return self.open[row["reservation"]]

    def _amounts(self, row: Row, name: str) -> list[int]:
        found = json.loads(row[name])
        same = self.seq == 0 or len(found) == len(self.settled)
        if not found or not same or any(type(e) is not int or e < 0 for e in found):
            self._bad(row, f"its {name} is no amount of this account")
        return list(found)

    def _bad(self, row: Row, problem: str) -> NoReturn:
        msg = f"account {self.name!r}, entry {row['seq']}: {problem}"
        raise BadError(msg)


def forged(key: bytes, ledger: str, account: str, points: list[Row]) -> int | None:
    """Return the entry of the first checkpoint that the key did not sign so.

    The text that is signed is [ledger, account, seq, hash], and for those that are
    counted also the count and the signature of the one before, which is empty for the
    first. Those that were signed before they were counted come first.

    Args:
        key: The ledger's key.
        ledger: Id of the ledger.
        account: Whose checkpoints these are.
        points: All of them, by the entries that they sign.
    """
    previous, counted = "", False
    for place, point in enumerate(points, 1):
        counted = counted or point["number"] is not None
        chained = [place, previous] if counted else []
        text = canonical([ledger, account, point["seq"], point["hash"], *chained])
        wanted = hmac.new(key, text.encode(), "sha256").hexdigest()
        if not hmac.compare_digest(wanted.encode(), point["signature"].encode()):
            return int(point["seq"])
        previous = point["signature"]
    return None


def miscounted(points: list[Row]) -> int | None:
    """Return the entry of the first checkpoint whose count is not its place."""
    counted = False
    for place, point in enumerate(points, 1):
        counted = counted or point["number"] is not None
        if counted and point["number"] != place:
            return int(point["seq"])
    return None
