"""The power fails: what was acknowledged is on the disk, and nothing is half there.

The real statements run through a file system that notes every write. After each note
the power might have failed; each image is opened by the standard library's SQLite.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.tables.owners import Liveness
from tests.faults.auditor import audited
from tests.faults.power import Disk, Note, noted_database
from tests.faults.support import empty_ledger, figure, first_seed
from tests.ledger.support import granted, make_policy
from tests.sizes import scaled

CAP = Fraction(1)
POLICY = make_policy()
#: Names that stand for an acknowledgement among the notes.
ACKS = {"granted", "settled", "void"}
STATES = {"granted": {"open", "settled", "void"}, "settled": {"settled"}}
STATES["void"] = {"void"}
LEDGER = "ledger.db"


def history(folder: Path, seed: int, **settings: Any) -> list[Note]:
    """Use a ledger for a while and return what happened, acknowledgements included."""
    chance = Random(seed)
    with noted_database(folder, **settings) as database:
        ledger, vfs = Ledger(database, Liveness()), database.vfs
        for number in range(14):
            cost, name = f"{chance.randrange(1, 60)}e-3", f"r{number}"
            granted(ledger, cost, policies=[POLICY], reservation=name)
            vfs.note(name, "granted")
            fate = chance.random()
            if fate < 0.6:
                ledger.settle(name, value='"x"')
                vfs.note(name, "settled")
            elif fate < 0.7:
                ledger.void(name, reason="test")
                vfs.note(name, "void")
            if chance.random() < 0.1:
                database.close()
    return vfs.notes


def images(notes: list[Note], seed: int, count: int) -> Iterator[tuple[Any, Any]]:
    """Yield files as a power cut might leave them, and what was acknowledged."""
    chance, disk = Random(seed), Disk()
    disk.safe[LEDGER] = empty_ledger()
    sent: dict[str, str] = {}
    cuts = Counter(chance.randrange(len(notes)) for _ in range(count))
    for position, note in enumerate(notes):
        name, what = note[:2]
        if what in ACKS:
            sent[name] = what
        else:
            disk.follow(note)
        for _ in range(cuts[position]):
            yield disk.image(chance), sent


def broken_promise(folder: Path, image: dict[str, bytes], sent: dict[str, str]) -> str:
    """Open an image; return what is wrong with it, if anything."""
    for old in folder.iterdir():
        old.unlink()
    for name, content in image.items():
        (folder / name).write_bytes(content)
    try:
        states = audited(folder / LEDGER, CAP)
    except (sqlite3.Error, AssertionError, KeyError, TypeError, ValueError) as error:
        return f"damaged: {error!r}"
    for name, ack in sent.items():
        if states.get(name) not in STATES[ack]:
            return f"{name} was {ack} and is {states.get(name)}"
    return ""


@pytest.mark.promise("power-failure")
@pytest.mark.parametrize(
    ("settings", "count", "is_safe"),
    [
        ({}, scaled(400, 200), True),
        ({"journal": "TRUNCATE"}, scaled(100, 50), True),
        ({"synchronous": "NORMAL"}, scaled(100, 50), False),
        ({"synchronous": "OFF"}, scaled(100, 50), False),
        ({"journal": "DELETE"}, scaled(100, 50), False),
    ],
    ids=["WAL FULL", "TRUNCATE FULL", "WAL NORMAL", "WAL OFF", "DELETE FULL"],
)
def test_what_was_acknowledged_survives(tmp_path, settings, count, is_safe):
    """With dpflow's settings no image lacks a charge that was acknowledged.

    The images know a bad setting from a good one: weaker ones lose charges.
    """
    start, each, counts = first_seed(), 50, Counter[str]()
    for seed in range(start, start + -(-count // each)):
        notes = history(tmp_path, seed, **settings)
        for image, sent in images(notes, seed, each):
            wrong = broken_promise(tmp_path, image, sent)
            counts.update(images=1, violations=bool(wrong))
            if wrong and counts["violations"] == 1:
                print(f"seed {seed}: {wrong}")
    name = " ".join({"journal": "WAL", "synchronous": "FULL", **settings}.values())
    figure(f"power cut, {name}", first_seed=start, **counts)
    assert (counts["violations"] == 0) == is_safe
    assert counts["images"] >= count
