"""A ledger with a bit of everything, and people who edit it and fit the hashes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dpflow import Gaussian
from dpflow.exceptions import BudgetRefused
from dpflow.ledger import Ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision.by_hand import Amend, Prior
from dpflow.ledger.entry import Columns, canonical, entry_hash
from tests.ledger.support import (
    COLUMNS,
    Place,
    edit,
    granted,
    make_policy,
    read,
    request,
)
from tests.signing import key_of

KEY = key_of("k")
SHOP = make_policy(
    "shop",
    budget="{epsilon: 3, delta: 1e-6}",
    filter="gdp",
    odometer="{theorem: rdp, delta: 1e-6}",
    flows="{report: {epsilon: 1, delta: 5e-7, halt_at_epsilon: 3}}",
    other_flows="allow",
)
STEP = Gaussian(sensitivity=1, sigma=100)


def fill(ledger: Ledger) -> None:
    """Let everything happen to a ledger that can."""
    for number in range(4):
        name = granted(ledger, key=f"week/{number}")
        ledger.settle(name, value=json.dumps(number))
    ledger.void(granted(ledger, "0.01"), reason="test")
    with pytest.raises(BudgetRefused):
        ledger.reserve(request(ledger, "5", flow_run="refused"))
    for flow in ("report", "other", None):
        name = granted(ledger, STEP, policies=[SHOP], flow=flow, flow_run="run")
        ledger.settle(name, outcome="failed")
    lost = granted(ledger, "0.01", owner="0" * 32)
    ledger.forfeit(lost, reason="its process is gone")
    ledger.ask(
        Amend(
            charge=name, cost=Gaussian(sensitivity=1, sigma=50), reason="a wrong sigma"
        )
    )
    ledger.ask(Prior(policy=SHOP, cost=STEP, reason="before", evidence="e" * 64))
    granted(ledger, "0.02")


# Edits by someone who fits the hashes


def quoted(value: object) -> str:
    """Write a value into a statement."""
    if value is None or isinstance(value, int):
        return "NULL" if value is None else str(value)
    return "'" + str(value).replace("'", "''") + "'"


def rewrite(path: Place, change: Callable[[dict], None], book: str) -> None:
    """Change entries and fit the whole chain and the rows' sums to them."""
    names = COLUMNS.split()
    where = f"FROM entry WHERE book = '{book}' ORDER BY number"
    statements, previous, sums = [], "", {}
    for values in read(path, f"SELECT {', '.join(names)} {where}"):
        row = dict(zip(names, values, strict=True))
        key = f"book = '{book}' AND number = {row['number']}"
        row["postings"] = json.loads(row["postings"])
        change(row)
        sums |= row["postings"]
        if not isinstance(row["postings"], str):
            row["postings"] = canonical(row["postings"])
        previous = entry_hash(previous, Columns(**row))
        told = ", ".join(f"{name} = {quoted(row[name])}" for name in names)
        statements.append(f"UPDATE entry SET {told}, hash = '{previous}' WHERE {key}")
    statements.append(f"UPDATE book SET hash = '{previous}' WHERE name = '{book}'")
    for account, (_, settled, held) in sums.items():
        told = f"settled = '{canonical(settled)}', held = '{canonical(held)}'"
        statements.append(f"UPDATE account SET {told} WHERE id = '{account}'")
    edit(path, *statements)


def cheaper(row: dict) -> None:
    """Make every amount a tenth of what it was."""
    row["postings"] = {
        account: [[amount // 10 for amount in amounts] for amounts in three]
        for account, three in row["postings"].items()
    }


def signed_thrice(ledger, path):
    """Sign a ledger after each of three charges; return the journal's length then."""
    for _ in range(3):
        ledger.settle(granted(ledger))
        assert verify(ledger, key=KEY, sign=True).bad == []
    counts = [each["count"] for each in points(path)]
    assert counts == [1, 2, 3]


def points(path):
    """Return what the checkpoints of a dataset say."""
    sql = "SELECT body FROM entry WHERE book = 'a' AND kind = 'checkpoint'"
    found = read(path, f"{sql} ORDER BY number")
    return [json.loads(body)["signed"] for (body,) in found]


POLICIES = {name: make_policy(name, budget="{epsilon: 100}") for name in ("a", "b")}
