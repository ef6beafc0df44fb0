"""Ledgers of each version of these tables are upgraded and go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpflow import PureDP
from dpflow.exceptions import BudgetRefused, ConfigurationError, ReservationConflict
from dpflow.ledger.audit.reconcile import trust
from dpflow.ledger.audit.upgrades import upgrade
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import open_ledger
from dpflow.ledger.requests import Granted, Replayed, Request
from dpflow.ledger.tables.transaction import VERSION
from dpflow.ledger.witness.comparison import state_of_ledger
from tests.ledger.support import request, url
from tests.ledgers.make import main, make_policies, make_population
from tests.projects import ROOT

FOLDER = ROOT / "tests" / "ledgers"
VERSIONS = range(5, VERSION + 1)


@pytest.fixture(params=[*VERSIONS, "made now"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Ledger, dict[str, Any]]]:
    """Give a copy of the file of a version, upgraded, with its facts."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    if request.param == "made now":
        main(path)
    else:
        for end in ("db", "json"):
            name = f"version_{request.param}.{end}"
            shutil.copy(FOLDER / name, path.with_suffix(f".{end}"))
        saved = tmp_path / "saved.db"
        assert upgrade(url(path), saved=saved, witness="none") == request.param
    ledger = open_ledger(url(path), witness=witness)
    facts = json.loads(path.with_suffix(".json").read_text("utf-8"))
    yield ledger, facts
    ledger.close()


def ask(ledger: Ledger, facts: Any, *names: str, **fields: Any) -> Request:
    """Make a request of datasets of the file."""
    policies = tuple(make_policies(facts["fields"])[name] for name in names)
    is_member = any(policy.population for policy in policies)
    given = {"policies": policies, "epsilon": "0.05", **fields}
    populations = (make_population(),) if is_member else ()
    return request(ledger, given.pop("epsilon"), populations=populations, **given)


def test_every_version_has_a_file():
    """A new version brings one."""
    found = {file.stem for file in FOLDER.glob("version_*.db")}
    assert found == {f"version_{number}" for number in (4, *VERSIONS)}
    assert all(file.stat().st_size < 200_000 for file in FOLDER.glob("*.db"))


def test_it_goes_on(opened):
    """It is verified, settled, replayed from, refused and charged."""
    ledger, facts = opened
    assert ledger.id == facts["id"]
    uses = state_of_ledger(ledger.database).uses
    assert {name: [*use.used] for name, use in uses.items()} == facts["used"]
    trust(ledger, reason="it was opened")
    assert verify(ledger).bad == []
    ledger.settle(facts["open"], value="8")
    releases = {**facts["releases"], "claimed": {"datasets": ["visits"], "value": "8"}}
    for key, release in releases.items():
        fields = {name: release[name] for name in ("flow",) if name in release}
        fields["partitions"] = tuple(release.get("partitions", ()))
        names = release["datasets"]
        step = ask(ledger, facts, *names, key=key, **fields)
        if facts["frozen"] in names:
            with pytest.raises(BudgetRefused, match="frozen"):
                ledger.reserve(step)
            continue
        answer = ledger.reserve(step)
        assert isinstance(answer, Replayed)
        assert answer.value == release["value"]
    halted = ask(ledger, facts, "visits", flow="f", flow_run=facts["halted_run"])
    with pytest.raises(BudgetRefused, match="halt"):
        ledger.reserve(halted)
    with pytest.raises(ConfigurationError, match="this evidence"):
        ledger.charge_prior(
            make_policies(facts["fields"])["visits"],
            PureDP(epsilon="0.01"),
            reason="x",
            evidence=facts["evidence"],
            flow="g",
        )
    ((account, newest),) = facts["people"].items()
    step = ask(ledger, facts, "renewed")
    assert isinstance(ledger.reserve(step), Granted)
    with pytest.raises(ReservationConflict, match="another copy"):
        ledger.pay(account, step.reservation, before=None)
    ledger.pay(account, step.reservation, before=newest)
    ledger.settle(step.reservation)
    assert verify(ledger).bad == []
