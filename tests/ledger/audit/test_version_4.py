"""A ledger of version 4 goes on in a new one: sums, releases, freezes and people."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest

from dpflow import PureDP
from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    DpflowError,
    LedgerCorrupt,
    ReservationConflict,
)
from dpflow.ledger.audit.reconcile import trust
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.requests import Granted, Replayed
from tests.ledger.audit.versions import ask, check_ledger
from tests.ledger.support import make_policy, request, url
from tests.postgres import server
from tests.projects import ROOT
from tests.tables import read_tables
from tools import version_4
from tools.read_version_4 import Carrier, carry_ledger, main

FILE = ROOT / "tests" / "ledgers" / "version_4.db"
FACTS: dict[str, Any] = json.loads(FILE.with_suffix(".json").read_text("utf-8"))
#: What the tests of all versions look at.
COMMON = {
    **FACTS,
    "releases": {**FACTS["releases"], "kept": {"datasets": ["stopped"]}},
    "people": {name: steps[1] for name, steps in FACTS["people"].items()},
}


def copy_to_server(path: Path) -> str:
    """Copy the tables of a file of version 4 into a database; return its URL."""
    place = server().new_database()
    with sqlite3.connect(path) as file, psycopg.connect(place) as session:
        session.execute("CREATE SCHEMA dpflow")
        for table in ("ledger", "entry", "kept"):
            rows = file.execute(f"SELECT * FROM {table}")
            names = [column[0] for column in rows.description]
            numbers = {"one", "version", "number"}
            columns = ", ".join(
                f"{name} {'bigint' if name in numbers else 'text'}" for name in names
            )
            session.execute(f"CREATE TABLE dpflow.{table} ({columns})".encode())
            values = ", ".join(["%s"] * len(names))
            sql = f"INSERT INTO dpflow.{table} VALUES ({values})"
            session.cursor().executemany(sql.encode(), rows.fetchall())
    return place


@pytest.fixture(params=["sqlite", "postgres"])
def carried(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    """Give a new ledger of what the file of version 4 holds, on each database."""
    if request.param == "sqlite":
        old, new = str(FILE), url(tmp_path / "new.db")
    else:
        old, new = copy_to_server(FILE), server().new_database()
    carrier = carry_ledger(old, new)
    assert sorted(carrier.forfeited) == sorted(FACTS["open"])
    with closing(open_ledger(new, witness=str(tmp_path / "witness"))) as ledger:
        trust(ledger, reason="carried")
        yield ledger


def test_it_has_the_sums_of_before(carried):
    """Of each account, everything settled; with the same id, alerts and overdrafts."""
    assert carried.id == FACTS["id"]
    with carried.reading() as transaction:
        transaction.begin(lock=False)
        rows = transaction.ask("read_accounts_between", first="", last="~~")
    found = {
        name: (json.loads(settled), json.loads(held), alerted, bool(overdrawn))
        for name, settled, held, _, alerted, overdrawn, *_ in rows
    }
    expected = {}
    for name, fields in FACTS["accounts"].items():
        total = [
            sum(pair) for pair in zip(fields["settled"], fields["held"], strict=True)
        ]
        alerted = max(fields["alerts"], default=None)
        expected[name] = total, [0] * len(total), alerted, fields["overdrawn"]
    assert found == expected
    assert any(alerted for *_, alerted, _ in found.values())
    assert any(overdrawn for *_, overdrawn in found.values())
    assert verify(carried).bad == []
    assert verify(carried).witness == "agrees"


def test_it_goes_on_as_before(carried):
    """What was refused is refused, and what may be charged is charged."""
    first, second = FACTS["evidence"]
    charged_to = {first: ("visits", "g"), second: ("orders", None)}
    check_ledger(carried, COMMON, charged_to)
    # A withdrawn release, and one whose charge was open, are drawn anew.
    for key in ("withdrawn", "claimed", "failed"):
        step = ask(carried, "visits", key=key, flow="g")
        assert isinstance(carried.reserve(step), Granted)
        carried.settle(step.reservation, value="8")
        assert isinstance(carried.reserve(replace(step, reservation="x")), Replayed)
    with pytest.raises(BudgetRefused):
        carried.reserve(ask(carried, "orders", epsilon="0.5"))
    for charge in FACTS["open"]:
        with pytest.raises(ReservationConflict):
            carried.settle(charge)
    other = make_policy("other", source="shop.visits")
    with pytest.raises(ConfigurationError, match="source"):
        carried.reserve(request(carried, "0.01", policies=[other]))
    for week, epsilon in (("2026-W02", "0.01"), ("2026-W03", "0.71")):
        step = ask(carried, "weeks", epsilon=epsilon, partitions=(week,))
        with pytest.raises(BudgetRefused):
            carried.reserve(step)
    carried.reserve(ask(carried, "weeks", epsilon="0.69", partitions=("2026-W03",)))
    charge = FACTS["releases"]["visits number"]["charge"]
    carried.amend(charge, PureDP(epsilon="0.06"), reason="it read more")
    assert verify(carried).bad == []


@pytest.mark.parametrize(("edit", "match"), read_tables(__file__))
def test_a_damaged_ledger_is_not_carried(tmp_path, edit, match, capsys):
    """Nothing is at the new place then."""
    path = tmp_path / "old.db"
    shutil.copy(FILE, path)
    with sqlite3.connect(path) as file:
        sql = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (name,) in file.execute(sql).fetchall():
            file.execute(f"DROP TRIGGER {name}")
        file.execute(edit)
    assert main([str(path), url(tmp_path / "new.db")]) == 1
    assert match in capsys.readouterr().err
    assert not (tmp_path / "new.db").exists()


def test_a_place_that_is_taken_is_refused(tmp_path, capsys):
    """Nothing is overwritten, and each argument is needed."""
    new = url(tmp_path / "new.db")
    assert main([str(FILE), new]) == 0
    assert "2 open charges were forfeited" in capsys.readouterr().out
    assert main([str(FILE), new]) == 1
    assert main([str(tmp_path / "missing.db"), new]) == 1
    assert main([new]) == 2
    with pytest.raises(DpflowError):
        carry_ledger(new, url(tmp_path / "newer.db"))


def test_an_unknown_kind_is_refused(tmp_path):
    """It is named, and nothing is carried."""
    old = version_4.read_old(str(FILE))
    entries = [*old.entries, old.entries[0]._replace(kind="seal")]
    with pytest.raises(LedgerCorrupt, match="unknown kind"):
        Carrier(old._replace(entries=entries), Mock()).carry()
