"""Make a small ledger of this version, with its facts as JSON next to it.

python -m tests.ledgers.make tests/ledgers/version_5.db
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from dpflow import EarlyStopping, Gaussian, Laplace, PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import BudgetRefused
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger
from dpflow.ledger.requests import Conditions
from dpflow.ledger.witness.comparison import state_of_ledger
from dpflow.policy import Policy, parse_policy
from tests.ledger.support import granted, make_policy

POLICIES = yaml.safe_load(Path(__file__).with_name("policies.yaml").read_text("utf-8"))
#: Fields of the policies by dataset.
FIELDS: dict[str, dict[str, str]] = POLICIES["fields"]
EVIDENCE = "e" * 64
NUMBER = PureDP(epsilon="0.05")


def make_policies() -> dict[str, Policy]:
    """Return the policies of the datasets by name."""
    return {name: make_policy(name, **values) for name, values in FIELDS.items()}


def find_members(policies: Mapping[str, Policy], *names: str) -> dict[str, Any]:
    """Return the policies of some datasets, with their population."""
    chosen = tuple(policies[name] for name in names)
    is_member = any(policy.population for policy in chosen)
    population = parse_policy(POLICIES["population"])
    return {"policies": chosen, "populations": (population,) if is_member else ()}


def fill(ledger: Ledger) -> dict[str, Any]:
    """Fill a new ledger, and return its facts."""
    policies, releases = make_policies(), dict[str, dict[str, Any]]()

    def reserve(*names: str, cost: Cost = NUMBER, **fields: Any) -> str:
        return granted(ledger, cost, **find_members(policies, *names), **fields)

    def release(key: str, value: str, *names: str, **fields: Any) -> None:
        ledger.settle(reserve(*names, key=key, **fields), value=value)
        releases[key] = {"datasets": names, "value": value, **fields}

    release("number", "41.5", "visits", flow="g")
    release("list", "[1.5,2.5]", "visits", flow="f")
    stops = EarlyStopping(Laplace(sensitivity=1, epsilon="0.05"), stops=(2, 4))
    ledger.settle(reserve("visits", cost=stops, flow="g"), reported=2)
    ledger.settle(reserve("visits", key="failed", flow="g"), outcome="failed")
    ledger.void(reserve("visits", flow="g"), reason="it never started")
    with suppress(BudgetRefused):
        # The odometer of the flow halts the run.
        reserve("visits", cost=PureDP(epsilon="0.4"), flow="f", flow_run="f2")
    prior = {"reason": "spent before", "evidence": EVIDENCE, "flow": "g"}
    ledger.charge_prior(policies["visits"], PureDP(epsilon="0.1"), **prior)
    release("joined", "3", "orders", "regions", partitions=("north", "south"))
    more = reserve("orders")
    ledger.settle(more)
    ledger.amend(more, PureDP(epsilon=2), reason="it read more")
    release("week", "9", "weeks", partitions=("2026-W01", "2026-W02"))
    noise = Gaussian(sensitivity=1, sigma=20)
    ledger.settle(reserve("adaptive", cost=noise))
    release("stopped", "5", "stopped")
    ledger.freeze("stopped", reason="an inquiry")
    newest = policies["renewed"]
    for budget in ("1", "0.8"):
        fields = {**FIELDS["renewed"], "budget": f"{{epsilon: {budget}}}"}
        policies["renewed"] = make_policy("renewed", **fields)
        ledger.apply(policies["renewed"], reason="less")
        ledger.settle(reserve("renewed"))
    policies["renewed"] = newest
    ledger.apply(newest, reason="a new year", new_term=True)
    paid = reserve("renewed")
    ledger.pay("renewed#2", paid, before=None)
    ledger.settle(paid)
    opened = reserve("visits", key="claimed", flow="g")
    uses = state_of_ledger(ledger.database).uses
    return {
        "id": ledger.id,
        "fields": FIELDS,
        "releases": releases,
        "used": {name: use.used for name, use in sorted(uses.items())},
        "people": {"renewed#2": paid},
        "open": opened,
        "evidence": EVIDENCE,
        "frozen": "stopped",
        "halted_run": "f2",
    }


def main(path: Path) -> None:
    """Make a file and its facts."""
    ledger = create_ledger(f"sqlite:///{path.absolute()}", witness="none")
    ledger.conditions = Conditions(provenance={"who": "ann"})
    facts = fill(ledger)
    ledger.close()
    file = sqlite3.connect(path, isolation_level=None)
    # The pages of a small file are small.
    for words in ("PRAGMA journal_mode = DELETE", "PRAGMA page_size = 1024", "VACUUM"):
        file.execute(words).fetchall()
    file.close()
    text = json.dumps(facts, indent=1, sort_keys=True)
    path.with_suffix(".json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
