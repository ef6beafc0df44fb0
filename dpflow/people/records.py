"""What the two files of a store hold: the people's tallies, and the witness."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from dpflow.accounting.costs.base import cost_from_description
from dpflow.accounting.rules.individual import IndividualBound
from dpflow.exceptions import LedgerCorrupt
from dpflow.people.files import digest, replace_file
from dpflow.people.slots import DIGEST_BYTES, Slots
from dpflow.people.state import PrivateTally

_FORMAT = "dpflow-people-4"
_HEADER_BYTES = 4096
_FLOAT_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a store has come: public, for it depends on outputs only.

    Attributes:
        store: Which store, for ever.
        step: How many steps were reserved.
        token: Drawn anew at each step, so that two histories never look the same.
    """

    store: str
    step: int
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """The contents of the people's file.

    Attributes:
        tally: What each person has left.
        slots: Which of them is whose.
        reservation: The ledger's reservation that pays for the bound.
        position: How far the store has come.
        previous: The token of the step before the newest one.
    """

    tally: PrivateTally
    slots: Slots
    reservation: str
    position: Position
    previous: str

    def __repr__(self) -> str:
        """Name the store and nothing of its contents."""
        return f"<People of store {self.position.store}: withheld>"


def write_people(path: Path, people: People) -> None:
    """Replace the people's file, durably.

    Raises:
        OSError: If that failed; the file is then the old or the new one.
    """
    left = people.tally.to_store()
    names = people.slots.to_store()
    header = {
        "format": _FORMAT,
        **asdict(people.position),
        "previous": people.previous,
        "reservation": people.reservation,
        "bound": people.tally.bound.describe(),
        "people": len(left) // _FLOAT_BYTES,
        "key": people.slots.key.hex(),
        "body": digest(left, names),
    }
    replace_file(path, [_sealed(header).ljust(_HEADER_BYTES, b"\0"), left, names])


def read_people(path: Path) -> People:
    """Read the people's file and check all of it.

    Raises:
        LedgerCorrupt: If one bit of it is not as it was written.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        header = _header(path, file)
        left = bytearray(header["people"] * _FLOAT_BYTES)
        names = bytearray(header["people"] * DIGEST_BYTES)
        if any(file.readinto(part) != len(part) for part in (left, names)):
            _damaged(path, "it has the wrong size")
        if file.read(1):
            _damaged(path, "it has the wrong size")
    if digest(left, names) != header["body"]:
        _damaged(path, "its checksum does not match")
    bound = cost_from_description(header["bound"])
    if not isinstance(bound, IndividualBound):
        _damaged(path, "its bound is none")
    return People(
        tally=PrivateTally.from_store(bound, left),
        slots=Slots(bytes.fromhex(header["key"]), bytes(names)),
        reservation=header["reservation"],
        position=Position(
            **{name: header[name] for name in ("store", "step", "token")}
        ),
        previous=header["previous"],
    )


def _header(path: Path, file: BinaryIO) -> dict[str, Any]:
    header = _unsealed(path, file.read(_HEADER_BYTES).rstrip(b"\0"))
    if header.get("format") != _FORMAT:
        _damaged(path, "it has another format")
    return header


def write_witness(path: Path, position: Position) -> None:
    """Replace the witness, durably.

    Raises:
        OSError: If that failed; the file is then the old or the new one.
    """
    replace_file(path, [_sealed(asdict(position))])


def read_witness(path: Path) -> Position:
    """Read the witness.

    Raises:
        LedgerCorrupt: If it is not as it was written.
        OSError: If it cannot be read.
    """
    values = _unsealed(path, path.read_bytes())
    try:
        return Position(**values)
    except TypeError:
        _damaged(path, "it is no witness")


def _sealed(values: dict[str, Any]) -> bytes:
    text = json.dumps(values, sort_keys=True).encode("ascii")
    return text + b"\n" + digest(text).encode("ascii") + b"\n"


def _unsealed(path: Path, sealed: bytes) -> dict[str, Any]:
    text, _, rest = sealed.partition(b"\n")
    if rest != digest(text).encode("ascii") + b"\n":
        _damaged(path, "its checksum does not match")
    values: dict[str, Any] = json.loads(text)
    return values


def _damaged(path: Path, why: str) -> NoReturn:
    msg = (
        f"{path} is damaged: {why}. No step may run on it: restore the newest copy; "
        "an older one would forget what has been spent, and the witness refuses it."
    )
    raise LedgerCorrupt(msg, ledger=str(path))
