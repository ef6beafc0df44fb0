"""Every kind of entry in one ledger, and everything that reads a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpflow import Gaussian
from dpflow.config import LEDGER_VARIABLE, POLICIES_VARIABLE
from dpflow.exceptions import BudgetRefused
from dpflow.ledger import Ledger, create_ledger, pin_ledger
from dpflow.ledger.audit.export import journal_rows, verify_export
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.decision.by_hand import Amend, Prior
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.office import apply_policy
from dpflow.policy import Policy, load_policies
from tests.cli.support import run, run_fine, run_json
from tests.ledger.run_reservations import drawn, held_run, whole
from tests.ledger.support import Place, audit, granted, url
from tests.signing import key_file, key_of

pytestmark = pytest.mark.storages("sqlite", "postgres")

KEY = key_of("k")
SHOP = """\
dataset: shop
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
lifetime: {epsilon: 9, delta: 1e-5}
filter: gdp
odometer: {theorem: rdp, delta: 1e-6}
flows:
  weekly: {epsilon: 2, delta: 5e-7, halt_at_epsilon: 4}
other_flows: allow
source: warehouse.customers
alerts: [0.2]
"""
VISITS = """\
dataset: visits
unit: visitor
relation: add-or-remove
budget: {epsilon: 1}
lifetime: {epsilon: 1}
filter: basic
source: web.visits
"""
STEP = Gaussian(sensitivity=1, sigma=20)
KINDS = {
    *("open", "reserve", "settle", "void", "forfeit", "refuse", "seal"),
    *("adjust", "tighten", "freeze", "unfreeze", "checkpoint"),
}


@dataclass
class World:
    """A project whose ledger has lived through everything."""

    folder: Path
    path: Place
    ledger: Ledger

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies as the files say."""
        return dict(load_policies(self.folder / "policies"))

    def write(self, name: str, text: str) -> None:
        """Write a policy file."""
        (self.folder / "policies" / f"{name}.yaml").write_text(text, "utf-8")

    def checked(self, name: str) -> Policy:
        """Return a policy, with all that the ledger holds so far verified."""
        report = verify(self.ledger, key=KEY, sign=True)
        assert report.bad == []
        assert report.witness == "agrees"
        return self.policies[name]


@pytest.fixture
def world(
    path: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """Make the project and let everything happen, verified after each kind of thing."""
    witness = str(tmp_path / "witness")
    for name, value in (
        ("DPFLOW_LEDGER_KEY", key_file(tmp_path, "k")),
        ("DPFLOW_WITNESS", witness),
        (LEDGER_VARIABLE, url(path)),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(POLICIES_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policies").mkdir()
    (tmp_path / "pyproject.toml").touch()
    ledger = create_ledger(url(path), witness=witness)
    pin_ledger(ledger, tmp_path / "policies")
    made = World(folder=tmp_path, path=path, ledger=ledger)
    made.write("shop", SHOP)
    made.write("visits", VISITS)
    live(made)
    yield made
    ledger.close()


def live(world: World) -> None:
    """Let happen what can happen to a ledger."""
    charge_plainly(world, world.policies["shop"])
    hold_run_in_shop(world, world.checked("shop"))
    by_hand(world, world.checked("shop"))
    visits = world.checked("visits")
    world.ledger.settle(granted(world.ledger, "0.1", policies=[visits]))
    world.ledger.ask(Freeze(book="shop", reason="looked odd"))
    with pytest.raises(BudgetRefused, match="frozen"):
        granted(world.ledger, STEP, policies=[world.checked("shop")])
    world.ledger.ask(Freeze(book="shop", reason="was not", unfreeze=True))
    tighten(world, world.checked("shop"))
    open_a_term(world, world.checked("shop"))
    world.checked("shop")


def charge_plainly(world: World, policy: Policy) -> None:
    """Settle, fail, void, forfeit and refuse steps."""
    ledger = world.ledger
    here: dict[str, Any] = {"policies": [policy], "flow": "weekly", "flow_run": "r0"}
    ledger.settle(granted(ledger, STEP, key="week/1", **here), value="3")
    ledger.settle(granted(ledger, STEP, **here), outcome="failed")
    ledger.void(granted(ledger, STEP, policies=[policy]), reason="test")
    lost = granted(ledger, STEP, policies=[policy], owner="0" * 32)
    ledger.forfeit(lost, reason="its process is gone")
    with pytest.raises(BudgetRefused):
        granted(ledger, Gaussian(sensitivity=1, sigma="0.1"), policies=[policy])


def hold_run_in_shop(world: World, policy: Policy) -> None:
    """Hold runs that are sealed, sealed as failed, closed, voided and left open."""
    ledger = world.ledger
    for run_id in ("r1", "r2", "r3", "r4"):
        here: dict[str, Any] = {
            "policies": [policy],
            "flow": "weekly",
            "flow_run": run_id,
        }
        owner = {"owner": "0" * 32} if run_id == "r3" else {}
        name = held_run(ledger, [STEP] * 3, run=run_id, **here, **owner)
        mine = drawn(ledger, STEP, preflights=(run_id,), **here)
        assert not mine.beyond
        if run_id != "r4":
            ledger.settle(mine.reservation)
        if run_id == "r3":
            ledger.forfeit(name, reason="its run was killed")
    assert ledger.seal("r1", outcome="completed")
    assert ledger.seal("r2", outcome="failed")
    unused = held_run(ledger, [STEP], run="r5", policies=[policy])
    ledger.void(unused, reason="never started")
    inner = whole(
        ledger, [STEP], run="r6", policies=[policy], preflights=("r4",), flow="weekly"
    )
    ledger.reserve(inner)
    assert ledger.seal("r6", outcome="completed")


def by_hand(world: World, policy: Policy) -> None:
    """Amend a step and charge what was spent before."""
    ledger = world.ledger
    name = granted(ledger, STEP, policies=[policy])
    ledger.settle(name)
    ledger.ask(
        Amend(
            charge=name, cost=Gaussian(sensitivity=1, sigma=15), reason="a wrong sigma"
        )
    )
    world.checked("shop")
    ledger.ask(Prior(policy=policy, cost=STEP, reason="before", evidence="e" * 64))


def tighten(world: World, policy: Policy) -> None:
    """Lower the budget in place."""
    world.write("shop", SHOP.replace("budget: {epsilon: 3,", "budget: {epsilon: 2.5,"))
    result = apply_policy(world.ledger, world.policies["shop"])
    assert result.action == "tighten"
    name = granted(world.ledger, STEP, policies=[world.checked("shop")])
    world.ledger.settle(name)
    assert policy.dataset == "shop"


def open_a_term(world: World, policy: Policy) -> None:
    """Open a second term and charge it, with a run that holds and draws."""
    wish = {"reason": "a new year", "new_term": True}
    apply_policy(world.ledger, policy, **wish)
    here: dict[str, Any] = {"policies": [policy], "flow": "weekly", "flow_run": "r7"}
    held_run(world.ledger, [STEP] * 2, run="r7", **here)
    step = drawn(world.ledger, STEP, preflights=("r7",), **here)
    world.ledger.settle(step.reservation)
    assert world.ledger.seal("r7", outcome="completed")


def test_all_that_reads_a_ledger_agrees(world: World) -> None:
    """Verified, audited, exported, and printed by every command."""
    report = verify(world.ledger, key=KEY)
    assert report.bad == []
    audit(world.path)
    _, *rows = journal_rows(world.ledger)
    assert {row["kind"] for row in rows} == KINDS
    assert [row["number"] for row in rows] == [*range(1, report.entries + 1)]
    run_fine("ledger", "export", "--out", "journal.jsonl")
    exported = verify_export(world.folder / "journal.jsonl", KEY)[1]
    assert (exported.bad, exported.signed, exported.entries) == ([], True, len(rows))
    assert run_json("ledger", "verify")["fine"]
    # One run, of which one step still runs: the rest of it is shown once.
    shown = run_json("ledger", "reservations")["reservations"]
    assert sorted(each["body"].get("covers") or "" for each in shown) == ["", "r4"]
    for command in (
        ("status",),
        ("status", "shop"),
        ("history", "--limit", "200"),
        ("history", "shop", "--all-accounts"),
        ("ledger", "reservations"),
        ("forecast", "shop", "--like", "weekly"),
        ("history", "visits"),
        ("why", "shop"),
        ("report", "--out", "page.html"),
    ):
        result = run(*command)
        assert result.exit_code == 0, (command, result.output)
        assert result.output.strip()
    page = Path("page.html").read_text("utf-8")
    assert "run r4: mu_squared 0.0025 undrawn" in page
    assert "Traceback" not in page
