"""Accidents after which a ledger has forgotten charges.

Without a witness each of them is silent: hashes, sums and SQLite's own checks are all
right, and the next step is granted as if nothing had been spent. With one, the next
step is refused. Nothing else may be: the second half is what only looks like one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.exceptions import LedgerError, LedgerRolledBack
from dpflow.ledger.audit.reconcile import reconcile
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.requests import Granted
from dpflow.ledger.witness.lines import seal
from tests.ledger.support import audit, everything, granted
from tests.ledger.witness.accidents import (
    ACCIDENTS,
    HARMLESS,
    OF_FILES,
    POLICY,
    Host,
    after,
    copy_database,
    next_step,
)
from tests.postgres import server
from tests.sizes import scaled

EACH, FEW = scaled(5, push=1), scaled(2, push=1)


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Give a database that keeps the witnesses of all hosts, each apart."""
    url = server().new_database()
    yield url
    server().drop(url)


@pytest.fixture(params=["file", "postgres"])
def kept(request: pytest.FixtureRequest) -> str | None:
    """Give the place of the witness; None: a folder of each host's own."""
    if request.param == "file":
        return None
    return str(request.getfixturevalue("database"))


@pytest.mark.promise("deleted-log", "older-copy")
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_no_accident_is_silent_with_a_witness(tmp_path, accident, kept):
    """The step is refused, nothing is charged, and the way out is named."""
    for seed in range(EACH if kept is None else FEW):
        host = after(accident, tmp_path / str(seed), seed, kept)
        before = everything(host.path)
        answer = next_step(host)
        assert isinstance(answer, LedgerRolledBack), (seed, answer)
        assert "dpflow ledger reconcile" in answer.message
        assert before == everything(host.path)


@pytest.mark.promise("older-copy")
@pytest.mark.parametrize("accident", ACCIDENTS)
def test_every_accident_is_silent_without_one(tmp_path, accident):
    """The control: the ledger agrees with itself and grants the step."""
    for seed in range(FEW):
        host = after(accident, tmp_path / str(seed), seed, "none")
        assert isinstance(next_step(host), Granted), seed
        audit(host.path)


def restored_below(host: Host) -> Ledger:
    """Return an open ledger into whose file an older copy was restored."""
    ledger = host.open()
    host.work(ledger)
    copy = host.copy()
    host.work(ledger)
    copy_database(copy, host.path)
    return ledger


@pytest.mark.promise("older-copy")
@pytest.mark.parametrize("more", [0, 1, 3])
def test_an_open_process_notices_without_a_witness(tmp_path, more):
    """Before any step, also if others went on with the older copy, however far."""
    host = Host(tmp_path, "none", random.Random(1))
    ledger = restored_below(host)
    for _ in range(more):
        host.work(least=6)
    before = everything(host.path)
    for _ in range(2):
        with pytest.raises(LedgerRolledBack, match="which this process saw"):
            ledger.freeze("a", reason="test")
        with pytest.raises(LedgerRolledBack, match="which this process saw"):
            granted(ledger, "0.25", policies=[POLICY])
    assert everything(host.path) == before
    assert isinstance(next_step(host), Granted)


def test_an_open_process_goes_on_after_a_repair(tmp_path, kept):
    """A command of an operator and steps follow the repaired ledger anew."""
    host = Host(tmp_path, kept or str(tmp_path / "state"), random.Random(1))
    ledger = restored_below(host)
    reconcile(host.open(), reason="test")
    assert ledger.freeze("a", reason="test")
    ledger.freeze("a", reason="test", unfreeze=True)
    granted(ledger, "0.25", policies=[POLICY])
    audit(host.path)


@pytest.mark.parametrize("event", HARMLESS)
def test_nothing_else_is_taken_for_an_accident(tmp_path, event, database):
    """The next steps run, and their charges are witnessed again, at either place."""
    for kept in (None,) if event in OF_FILES else (None, database):
        for seed in range(FEW):
            folder = tmp_path / f"{seed}-{kept is None}"
            host = after(event, folder, seed, kept)
            assert isinstance(next_step(host), Granted), seed
            host.work()
            audit(host.path)


# A witness that is damaged


@pytest.mark.promise("older-copy")
@pytest.mark.parametrize("damage", ["flip", "empty", "foreign", "half"])
def test_a_damaged_witness_fails_closed(tmp_path, damage):
    """Whole lines that do not fit their checksums are not skipped."""
    host = Host(tmp_path, str(tmp_path / "state"), random.Random(3))
    host.work()
    (file,) = Path(host.witness).iterdir()
    data = file.read_bytes()
    lines = data.splitlines(keepends=True)
    at = len(data) // 2
    damaged = {
        "flip": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        "empty": b"",
        "foreign": seal("f" * 32, ("file", "x", 0, "0")).encode() + b"\n",
        "half": b"".join([lines[0], lines[1][:50], b"\n", *lines[2:]]),
    }[damage]
    file.write_bytes(damaged)
    answer = next_step(host)
    assert isinstance(answer, LedgerError)
    assert not isinstance(answer, LedgerRolledBack)
    assert str(file) in answer.message
