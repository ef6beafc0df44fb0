"""What a step is answered, as a table: a decision reads no database and no clock."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow import EarlyStopping, Laplace, PureDP
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import (
    BudgetExhausted,
    BudgetRefused,
    ConfigurationError,
    LedgerCorrupt,
    PolicyChanged,
    ReservationConflict,
)
from dpflow.ledger.decisions.decision import Author
from dpflow.ledger.decisions.reserve import Refused, decide_refusal, decide_reserve
from dpflow.ledger.decisions.settlement import End, decide_end
from dpflow.ledger.decisions.terms import open_term
from dpflow.ledger.requests import Busy, Granted, Replayed, Request
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import (
    Account,
    Charge,
    ChargeDataset,
    Dataset,
    Held,
    Release,
)
from dpflow.rounding import UNITS
from tests.ledger.support import make_policy

AUTHOR = Author(at="2026-01-01T12:00:00", writer="w", provenance={"who": "ann"})
POLICY = make_policy("a", budget="{epsilon: 10}", alerts="[0.5, 0.9]")
UNIT = UNITS
ME, OTHER = "1" * 32, "2" * 32
STOPPING = EarlyStopping(Laplace(sensitivity=1, epsilon="0.5"), stops=(2, 4))


def tally(epsilon: float) -> tuple[int, int]:
    """Return an amount of epsilon."""
    return int(epsilon * UNIT), 0


def rows(
    *,
    used: float | None = 0,
    term: bool = True,
    frozen: bool = False,
    overdrawn: int = 0,
    release: str | None = None,
    alive: bool = False,
    granted_before: float | None = None,
) -> Rows:
    """Return what the ledger holds."""
    dataset = Dataset("a", hash="h")
    found = Rows(datasets={"a": dataset})
    if term:
        opened = open_term(found, POLICY, AUTHOR, "x")
        found = found.with_term(opened.after._replace(number=1), opened.term)
    if frozen:
        row = found.datasets["a"]._replace(frozen={"who": "ann", "reason": "x"})
        found.datasets["a"] = row
    if used is not None and term:
        account = Account("a#1", tally(used), (0, 0), 3, None, overdrawn)
        found.account_rows["a#1"] = account
    if release is not None:
        maker = charge("open" if release == "claimed" else "settled", owner=OTHER)
        value = "1" if release == "settled" else None
        found.release_charge = maker
        found.release = Release("f" * 64, "k", "a", "s", "c", release, "d", value=value)
        found.claimant_is_alive = alive
    if granted_before is not None:
        found.earlier_amounts = [{"a#1": [[*tally(granted_before)], 1, None, None]}]
    return found


def charge(state: str = "open", owner: str = ME, cost: Cost | None = None) -> Charge:
    """Return a charge of 1."""
    cost = cost or PureDP(epsilon=1)
    request = {
        "cost": cost.describe(),
        "datasets": ["a"],
        "partitions": [],
        "accounts": ["a#1"],
        "alerts": {"a": ["0.5", "0.9"]},
    }
    amounts = {"a#1": Held(tally(1 if cost != STOPPING else 2), 4)}
    return Charge("c", state, owner, None, "s", None, None, None, request, amounts)


def step(amount: float = 1, **fields: Any) -> Request:
    """Return a request."""
    values: dict[str, Any] = {
        "reservation": "r",
        "owner": ME,
        "policies": (POLICY,),
        "cost": PureDP(epsilon=amount),
        "step": "s",
        "release_key": "f" * 64,
        "key_text": "k",
    }
    return Request(**{**values, **fields})


OTHER_POLICY = make_policy("a", budget="{epsilon: 9}")
SECOND_POLICY = make_policy("b", budget="{epsilon: 9}")


@pytest.mark.parametrize(
    ("before", "request_", "answer"),
    [
        (rows(release="settled"), step(), Replayed),
        (rows(release="settled", frozen=True), step(), BudgetRefused),
        (rows(release="settled"), step(fresh=True), Granted),
        (rows(release="settled", used=10), step(), Replayed),
        (rows(release="claimed", alive=True), step(), Busy),
        (rows(release="claimed", alive=False), step(), Granted),
        (rows(release="free"), step(), Granted),
        (rows(release="withdrawn"), step(), Granted),
        (rows(used=9), step(), Granted),
        (rows(used=10), step(), BudgetRefused),
        (rows(used=10, granted_before=1), step(), BudgetExhausted),
        (rows(used=10, granted_before=0.5), step(), BudgetRefused),
        (rows(used=1, overdrawn=1), step(), BudgetRefused),
        (rows(frozen=True, granted_before=1), step(), BudgetRefused),
        (rows(used=None, term=False), step(), Granted),
        (rows(), step(policies=(OTHER_POLICY,)), PolicyChanged),
        (rows(), step(partitions=("x",)), ConfigurationError),
    ],
)
def test_a_step_is_answered_by_what_the_ledger_holds(before, request_, answer):
    """One row a promise."""
    assert type(answered(before, request_)) is answer


def answered(before: Rows, request: Request) -> object:
    """Return the answer, which may be an error."""
    try:
        decision = decide_reserve(before, request, AUTHOR)
    except (ConfigurationError, PolicyChanged) as error:
        return error
    if isinstance(decision, Refused):
        decision = decide_refusal(before, decision)
    return decision.answer


def ended(
    *,
    repaired_at: int = 0,
    version: int = 4,
    added: Any = None,
    used: float = 0,
    **fields: str,
) -> Rows:
    """Return rows with a charge of entry 1 that is to be ended."""
    before = rows(used=used)
    row = before.datasets["a"]._replace(repaired_at=repaired_at)
    before.datasets["a"] = row
    before.charge = made = charge(cost=STOPPING, **fields)
    made.amounts["a#1"] = made.amounts["a#1"]._replace(added=added)
    before.charge_datasets = [ChargeDataset("a", 1, "c", None, None, "s")]
    account = before.account_rows["a#1"]
    before.account_rows["a#1"] = account._replace(held=tally(2), version=version)
    return before


def end(kind: str = "settle", **fields: Any) -> End:
    """Return the end of a charge."""
    values = {"kind": kind, "charge": "c", "owner": ME}
    return End(**{**values, "body": {"outcome": "completed"}, **fields})


@pytest.mark.parametrize(
    ("before", "request_", "posted"),
    [
        (ended(), end(), 2),
        (ended(), end(reported=2), 1),
        (ended(), end(reported=2, owner=OTHER), 2),
        # What it reports is a part of a cost that was declared too small.
        (ended(added=tally(1)), end(reported=2), 2),
        (ended(repaired_at=1), end(reported=2), 2),
        (ended(version=7), end(reported=2), 1),
        (ended(), end("void"), 0),
        (ended(repaired_at=1), end("void"), 2),
        (ended(), end("forfeit", owner=""), 2),
    ],
)
def test_an_end_posts_what_its_outcome_costs(before, request_, posted):
    """In full, unless the outcome returns something and nothing was lost since."""
    decision = decide_end(before, request_, AUTHOR)
    account = decision.accounts["a#1"]
    assert (account.settled, account.held) == (tally(posted), (0, 0))


@pytest.mark.parametrize(
    ("before", "request_", "words"),
    [
        (ended(owner=OTHER), end("void"), "another process"),
        (Rows(), end(), "has no reservation c"),
        (ended(), end("forfeit", owner=""), "still runs"),
        (ended(state="void"), end(), "is void already"),
    ],
)
def test_an_end_may_be_a_conflict(before, request_, words):
    """Another process's void, no charge, a forfeit while its owner lives."""
    before.claimant_is_alive = True
    with pytest.raises(ReservationConflict, match=words):
        decide_end(before, request_, AUTHOR)


@pytest.mark.parametrize(
    ("used", "alerted", "raised"),
    [(2.9, None, []), (3, None, ["0.5"]), (3, "0.5", []), (7, "0.5", ["0.9"])],
)
def test_an_end_raises_the_highest_threshold_once(used, alerted, raised):
    """Held amounts raise none; settled ones do, in the entry that ends the charge."""
    before = ended(used=used)
    account = before.account_rows["a#1"]
    before.account_rows["a#1"] = account._replace(alerted=alerted)
    decision = decide_end(before, end(), AUTHOR)
    assert [alert.threshold for alert in decision.answer.alerts] == raised
    assert decision.accounts["a#1"].alerted == (raised[0] if raised else alerted)


@pytest.mark.parametrize("kind", ["settle", "void", "forfeit"])
def test_an_end_names_every_dataset_of_its_charge(kind):
    """A charge whose amounts were cut out by hand ends nowhere."""
    before = ended()
    assert before.charge is not None
    before.charge = before.charge._replace(amounts={})
    with pytest.raises(LedgerCorrupt, match="other datasets"):
        decide_end(before, end(kind, owner="" if kind == "forfeit" else ME), AUTHOR)


def test_every_dataset_of_a_step_must_admit_it():
    """The first may be empty and the second full."""
    found = rows()
    found.datasets["b"] = Dataset("b", hash="h")
    opened = open_term(found, SECOND_POLICY, AUTHOR, "x")
    found = found.with_term(opened.after._replace(number=1), opened.term)
    found.account_rows["b#1"] = Account("b#1", tally(9), (0, 0), 3)
    both = step(policies=(POLICY, SECOND_POLICY))
    assert isinstance(decide_reserve(found, both, AUTHOR), Refused)
    found.account_rows["b#1"] = Account("b#1", tally(8), (0, 0), 3)
    decision = decide_reserve(found, both, AUTHOR)
    assert not isinstance(decision, Refused)
    assert isinstance(decision.answer, Granted)
