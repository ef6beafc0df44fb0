"""A ledger with a bit of everything, and people who edit it and fit the hashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dpflow.ledger.decision.office import Amend, Prior
from dpflow.ledger.entry import entry_hash, first_hash

from dpflow import Gaussian
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.canonical import canonical
from dpflow.ledger.ledger import Ledger
from tests.ledger.support import Place, edit, granted, make_policy, read, request

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


NAMES = ("number", "kind", "charge", "rows", "body", "at", "writer")


def rewrite(path: Place, change: Callable[[dict[str, Any]], object]) -> None:
    """Change entries, and fit the whole chain and the tags to them.

    Args:
        path: The ledger.
        change: Gets each entry with `rows` and `body` as data, to be changed.
    """
    sql = "SELECT ledger_id, version, created_at, environment FROM ledger"
    previous, statements = first_hash(*read(path, sql)[0]), ["DELETE FROM tag"]
    for values in read(path, f"SELECT {', '.join(NAMES)} FROM entry ORDER BY number"):
        row = dict(zip(NAMES, values, strict=True))
        row |= {name: json.loads(row[name]) for name in ("rows", "body")}
        change(row)
        keys = [*row["rows"]]
        for name in ("rows", "body"):
            row[name] = row.get(f"text of {name}") or canonical(row[name])
        previous = entry_hash(previous, [row[name] for name in NAMES])
        columns = ", ".join(f"{name} = {quoted(row[name])}" for name in NAMES)
        where = f"hash = '{previous}' WHERE number = {values[0]}"
        statements.append(f"UPDATE entry SET {columns}, {where}")
        statements += [
            f"INSERT INTO tag VALUES ({quoted(k)}, {values[0]})" for k in keys
        ]
    edit(path, *statements)


def postings(row: dict[str, Any]) -> list[list[Any]]:
    """Return what an entry says of accounts, to be changed."""
    return [each for key, each in row["rows"].items() if key.startswith("account/")]


def cheaper(row: dict[str, Any]) -> None:
    """Make every amount a tenth of what it was."""
    for posting in postings(row):
        posting[:3] = [[n // 10 for n in amounts] for amounts in posting[:3]]
    for key in row["rows"]:
        if key.startswith(("granted/", "held/")):
            row["rows"][key] = [n // 10 for n in row["rows"][key]]


POLICIES = {name: make_policy(name, budget="{epsilon: 100}") for name in ("a", "b")}
