"""A restored backup forgets decisions, too: freezes, tightenings and new terms."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from dpflow.ledger.audit.backup import backup, restore
from dpflow.ledger.decision.office import Freeze
from dpflow.ledger.model import all_terms
from dpflow.ledger.office import apply_policy

from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    LedgerRolledBack,
    LedgerUnwitnessed,
    PolicyChanged,
    PolicyNotApplied,
)
from dpflow.ledger import views
from dpflow.ledger.audit.reconcile import Comparison, compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import create_ledger, open_ledger
from dpflow.policy import Policy
from tests.ledger.audit.books import quoted
from tests.ledger.support import (
    BASIC,
    Place,
    audit,
    edit,
    freeze_of,
    granted,
    kinds,
    make_policy,
    read,
    sums,
    url,
)
from tests.ledger.witness.accidents import keep

pytestmark = pytest.mark.storages("sqlite", "postgres")

LOWER = make_policy(budget="{epsilon: 0.5}")
#: What only a new term can hold.
OTHER_UNIT = make_policy(unit="account", lifetime="{epsilon: 9}")


def freezes(ledger: Ledger) -> None:
    """Someone freezes the dataset."""
    ledger.ask(Freeze(book="a", reason="wrong sigma"))


def unfreezes(ledger: Ledger) -> None:
    """Someone freezes it, and unfreezes it again."""
    freezes(ledger)
    ledger.ask(Freeze(book="a", reason="it was right", unfreeze=True))


def tightens(ledger: Ledger) -> None:
    """Someone lowers the budget."""
    apply_policy(ledger, LOWER)


def opens(ledger: Ledger) -> None:
    """Someone opens a new term, under which nothing is charged yet."""
    wish = {"new_term": True, "reason": "accounts are the unit now"}
    apply_policy(ledger, OTHER_UNIT, **wish)


DECISIONS = [freezes, unfreezes, tightens, opens]
GATES = [freezes, unfreezes, tightens]
TABLES = {
    "entry": "number, kind, charge, rows, body, at, writer, hash",
    "tag": "key, number",
    "kept": "key, value",
}

Rows = dict[str, list[tuple[Any, ...]]]


def all_rows(path: Place) -> Rows:
    """Return what a backup would hold."""
    return {
        table: read(path, f"SELECT {columns} FROM {table}")
        for table, columns in TABLES.items()
    }


def take_back(path: Place, rows: Rows) -> None:
    """Make a ledger what it was, as a restored backup does."""
    for table, known in rows.items():
        values = [", ".join(map(quoted, row)) for row in known]
        into = f"INSERT INTO {table} ({TABLES[table]})"
        inserts = [f"{into} VALUES ({text})" for text in values]
        edit(path, f"DELETE FROM {table}", *inserts)


def forget(path: Place, witness: str, decide: Callable[[Ledger], None]) -> Ledger:
    """Decide, and put a backup from before the decision in the ledger's place."""
    ledger = create_ledger(url(path), witness=witness)
    ledger.settle(granted(ledger))
    before = all_rows(path)
    decide(ledger)
    ledger.close()
    take_back(path, before)
    return open_ledger(url(path), witness=witness)


@pytest.mark.parametrize(
    "policy", [BASIC, LOWER, OTHER_UNIT], ids=["old", "low", "new"]
)
@pytest.mark.parametrize("decide", DECISIONS)
def test_a_forgotten_decision_is_noticed(
    path: Place, tmp_path: Path, decide: Callable[[Ledger], None], policy: Policy
) -> None:
    """A dataset does not unfreeze, nor a budget grow back, nor an old term come back.

    Whatever policy file a worker has, it hears of the restored backup.
    """
    ledger = forget(path, str(tmp_path / "witness"), decide)
    words = r"lacks \d lines of its witness \S+ \((freeze|open|tighten|unfreeze)"
    with pytest.raises(LedgerRolledBack, match=words):
        granted(ledger, policies=[policy])
    ledger.close()


@pytest.mark.parametrize("decide", DECISIONS)
def test_without_a_witness_it_is_silent(
    path: Place, decide: Callable[[Ledger], None]
) -> None:
    """Nothing else would notice: what the test above sees is the witness."""
    ledger = forget(path, "none", decide)
    granted(ledger)
    ledger.close()


@pytest.mark.parametrize("decide", GATES)
def test_a_lost_gate_is_frozen_again(
    path: Place, tmp_path: Path, decide: Callable[[Ledger], None]
) -> None:
    """No line says which decision was lost, so the repair guesses none; usage stays."""
    ledger = forget(path, str(tmp_path / "witness"), decide)
    before = sums(path)
    assert all(line.decides for line in compare(ledger).lacking)
    assert kinds(path) == ["open", "reserve", "settle"]
    result = reconcile(ledger, {"a": BASIC}, reason="restored")
    assert sums(path) == before
    assert [(lost.dataset, lost.gates, lost.terms) for lost in result.lost] == [
        ("a", True, ())
    ]
    assert kinds(path)[3:] == ["repair", "freeze"]
    freeze = freeze_of(ledger, "a") or {}
    assert str(freeze["reason"]).startswith("repaired: a freeze was lost")
    with pytest.raises(BudgetRefused, match=r"frozen .*repaired: a freeze was lost"):
        granted(ledger)
    assert compare(ledger).agrees
    ledger.close()
    audit(path)


def test_a_lost_freeze_of_a_term_that_is_lost_is_frozen_again(
    path: Place, tmp_path: Path
) -> None:
    """The policy's file opens the term, and a step would find it open."""
    witness = str(tmp_path / "witness")
    ledger = create_ledger(url(path), witness=witness)
    before = all_rows(path)
    apply_policy(ledger, BASIC)
    freezes(ledger)
    ledger.close()
    take_back(path, before)
    ledger = open_ledger(url(path), witness=witness)
    reconcile(ledger, {"a": BASIC}, reason="restored")
    with pytest.raises(BudgetRefused, match=r"frozen .*repaired: a freeze was lost"):
        granted(ledger)
    assert compare(ledger).agrees
    ledger.close()


def test_lost_charges_alone_freeze_nothing(path: Place, tmp_path: Path) -> None:
    """They are charged again, and steps run: the negative of the tests above."""
    ledger = forget(
        path, str(tmp_path / "witness"), lambda ledger: granted(ledger) and None
    )
    assert compare(ledger).lost == ()
    assert reconcile(ledger, {"a": BASIC}, reason="restored").lost == ()
    assert freeze_of(ledger, "a") is None
    granted(ledger)
    ledger.close()


def test_a_freeze_that_is_back_is_not_repeated(path: Place, tmp_path: Path) -> None:
    """Who froze again before the repair stays the one who did."""
    ledger = forget(path, str(tmp_path / "witness"), freezes)
    freezes(ledger)
    reconcile(ledger, {"a": BASIC}, reason="restored")
    assert kinds(path).count("freeze") == 1
    assert (freeze_of(ledger, "a") or {})["reason"] == "wrong sigma"
    ledger.close()


# New terms


def test_a_lost_term_freezes_the_one_before(path: Place, tmp_path: Path) -> None:
    """A worker with the old file does not go on under the old term."""
    ledger = forget(path, str(tmp_path / "witness"), opens)
    before = sums(path)
    result = reconcile(ledger, {"a": OTHER_UNIT}, reason="restored")
    assert [(lost.gates, lost.terms) for lost in result.lost] == [(False, (2,))]
    assert sums(path) == before
    assert (freeze_of(ledger, "a") or {})["reason"] == "repaired: term 2 was lost"
    with pytest.raises(BudgetRefused, match="term 2 was lost"):
        granted(ledger)
    ledger.ask(Freeze(book="a", reason="nothing runs", unfreeze=True))
    opens(ledger)
    with pytest.raises(PolicyChanged):
        granted(ledger)
    granted(ledger, policies=[OTHER_UNIT])
    ledger.close()
    audit(path)


def test_a_term_that_was_applied_again_freezes_nothing(
    path: Place, tmp_path: Path
) -> None:
    """Nor does the term count as charged: it has no charge."""
    ledger = forget(path, str(tmp_path / "witness"), opens)
    opens(ledger)
    with pytest.raises(LedgerRolledBack):
        granted(ledger, policies=[OTHER_UNIT])
    assert reconcile(ledger, {"a": OTHER_UNIT}, reason="restored").lost == ()
    assert kinds(path)[-2:] == ["open", "repair"]
    assert [view.charged for view in views.terms(ledger, "a")] == [True, False]
    granted(ledger, policies=[OTHER_UNIT])
    ledger.close()
    audit(path)


def test_a_lost_term_that_was_charged_has_to_be_applied_again(
    path: Place, tmp_path: Path
) -> None:
    """Only then is there an account to charge; what to run is said."""

    def charges(ledger: Ledger) -> None:
        opens(ledger)
        granted(ledger, "0.3", policies=[OTHER_UNIT])

    ledger = forget(path, str(tmp_path / "witness"), charges)
    assert [lost.terms for lost in compare(ledger).lost] == [(2,)]
    with pytest.raises(ConfigurationError, match="its whole term, add `--new-term"):
        reconcile(ledger, {"a": OTHER_UNIT}, reason="restored")
    opens(ledger)
    result = reconcile(ledger, {"a": OTHER_UNIT}, reason="restored")
    assert result.lost == ()
    assert sum(sums(path, "a#2")) * 10 == 3
    # What ran under it is in the file that was lost.
    ledger.close()


def test_charges_after_a_lost_tightening_are_charged_again(
    path: Place, tmp_path: Path
) -> None:
    """A tightened term counts in the same currency, whichever copy governs."""

    def charges(ledger: Ledger) -> None:
        apply_policy(ledger, LOWER)
        granted(ledger, "0.1", policies=[LOWER])

    ledger = forget(path, str(tmp_path / "witness"), charges)
    used = sum(sums(path))
    assert reconcile(ledger, {"a": LOWER}, reason="restored").losses
    assert sum(sums(path)) * 10 == used * 10 + 1
    ledger.close()
    audit(path)


def test_a_lost_first_term_is_opened_by_its_file(tmp_path: Path) -> None:
    """There is nothing to freeze, and nothing else that could govern."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    ledger = create_ledger(url(path), witness=witness)
    apply_policy(ledger, BASIC)
    ledger.close()
    edit(path, *(f"DELETE FROM {table}" for table in TABLES))
    ledger = open_ledger(url(path), witness=witness)
    with pytest.raises(LedgerRolledBack):
        granted(ledger)
    reconcile(ledger, {"a": BASIC}, reason="restored")
    assert kinds(path) == ["repair"]
    granted(ledger)
    assert kinds(path) == ["repair", "open", "reserve"]
    ledger.close()


# What else knows of decisions


def test_a_witness_that_was_begun_anew_knows_them(path: Place, tmp_path: Path) -> None:
    """A repair begins it with the newest entries, behind which a freeze may be."""
    witness = str(tmp_path / "witness")
    ledger = forget(path, witness, freezes)
    before = all_rows(path)
    reconcile(ledger, {"a": BASIC}, reason="restored")
    with pytest.raises(BudgetRefused):
        granted(ledger)  # The refusal, not the freeze, is the newest entry now.
    assert reconcile(ledger, {"a": BASIC}, reason="restored").agrees
    ledger.close()
    take_back(path, before)
    ledger = open_ledger(url(path), witness=witness)
    assert [
        lost.gates for lost in reconcile(ledger, {"a": BASIC}, reason="x").lost
    ] == [True]
    with pytest.raises(BudgetRefused, match="frozen"):
        granted(ledger)
    ledger.close()


@pytest.mark.parametrize("taken_off", [False, True])
def test_a_lost_account_of_an_earlier_term_is_opened_again(
    tmp_path: Path, taken_off: bool
) -> None:
    """By the ledger's own copy, for the file of the newest term is another."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    flows = {"flows": "{weekly: {epsilon: 0.7}, daily: {epsilon: 0.5}}"}
    first = make_policy(**flows, lifetime="{epsilon: 9}")
    second = make_policy(
        flows="{daily: {epsilon: 2}}",
        budget="{epsilon: 2}",
        lifetime="{epsilon: 9}",
    )
    again = {"new_term": True, "reason": "more data"}
    ledger = create_ledger(url(path), witness=witness)
    ledger.settle(granted(ledger, policies=[first], flow="daily"))
    before = all_rows(path)
    ledger.settle(granted(ledger, "0.6", policies=[first], flow="weekly"))
    apply_policy(ledger, second, **again)
    ledger.settle(granted(ledger, "1.5", policies=[second], flow="daily"))
    ledger.close()
    take_back(path, before)
    ledger = open_ledger(url(path), witness=witness)
    if taken_off:
        fewer = make_policy(flows="{daily: {epsilon: 0.5}}", lifetime="{epsilon: 9}")
        assert apply_policy(ledger, fewer).action == "tighten"
    apply_policy(ledger, second, **again)
    reconcile(ledger, {"a": second}, reason="restored")
    assert sums(path, "a#1") == (Fraction("0.7"), 0)
    lost = "a#1/flow/weekly"
    assert sums(path, lost) == ((0, 0) if taken_off else (Fraction("0.6"), 0))
    assert sums(path, "a#2/flow/daily") == (Fraction("1.5"), 0)
    granted(ledger, "0.5", policies=[second], flow="daily")
    with pytest.raises(BudgetRefused):
        granted(ledger, "0.1", policies=[second], flow="daily")
    assert verify(ledger).bad == []
    ledger.close()


@pytest.mark.parametrize("epsilon", ["0.5", "2"])
def test_a_term_whose_charges_were_forgotten_is_not_replaced(
    tmp_path: Path, epsilon: str
) -> None:
    """The witness knows that a step ran under it, so that the lifetime decides."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")
    ledger = create_ledger(url(path), witness=witness)
    apply_policy(ledger, BASIC)
    before = all_rows(path)
    ledger.settle(granted(ledger, "1"))
    ledger.close()
    take_back(path, before)
    ledger = open_ledger(url(path), witness=witness)
    assert sums(path) == (0, 0)
    file = make_policy(
        budget=f"{{epsilon: {epsilon}}}", lifetime=f"{{epsilon: {epsilon}}}"
    )
    if epsilon == "2":
        with pytest.raises(PolicyChanged):
            apply_policy(ledger, file, reason="more")
        with pytest.raises(PolicyNotApplied, match=r"would add up to .* = 3"):
            apply_policy(ledger, file, reason="more", new_term=True)
        assert sums(path, "a#2") == (0, 0)
    else:
        with pytest.raises(PolicyNotApplied, match="lifetime"):
            apply_policy(ledger, file, reason="less")
    assert read(path, "SELECT count(*) FROM term") == [(1,)]
    reconcile(ledger, {"a": BASIC}, reason="restored")
    assert sums(path) == (1, 0)
    ledger.close()


def test_a_compacted_witness_still_knows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest line suffices for charges; a freeze needs its own."""
    path, witness = tmp_path / "ledger.db", str(tmp_path / "witness")

    def goes_on(ledger: Ledger) -> None:
        freezes(ledger)
        ledger.ask(Freeze(book="a", reason="it was right", unfreeze=True))
        keep(3, monkeypatch)
        for _ in range(20):
            ledger.settle(granted(ledger, "0.01"))

    ledger = forget(path, witness, goes_on)
    assert ledger.watch.witness is not None
    assert len(ledger.watch.witness.all_lines()) < 12
    assert [lost.gates for lost in compare(ledger).lost] == [True]
    ledger.close()


def put_back(path: Path, ledger: Ledger, policy: Policy) -> Comparison:
    """Put the copy of a ledger in its place; return what it then lacked."""
    return restore(
        path.with_name("copy"),
        path,
        ledger_id=ledger.id,
        witness=None,
        policies={"a": policy},
        reason="restored",
    ).charged_again


@pytest.mark.parametrize("decide", [freezes, tightens])
def test_restore_learns_of_a_lost_gate_from_the_file_it_replaces(
    tmp_path: Path, decide: Callable[[Ledger], None]
) -> None:
    """Also where the witness is waived."""
    path = tmp_path / "ledger.db"
    ledger = create_ledger(url(path), witness="none")
    granted(ledger)
    backup(ledger, tmp_path / "copy")
    decide(ledger)
    ledger.close()
    result = put_back(path, ledger, BASIC)
    assert [lost.gates for lost in result.lost] == [True]
    ledger = open_ledger(url(path), witness="none")
    with pytest.raises(BudgetRefused, match="frozen"):
        granted(ledger)
    ledger.close()


def test_a_restored_freeze_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    """A backup that has the decision lost none, whatever was charged since."""
    path = tmp_path / "ledger.db"
    ledger = create_ledger(url(path), witness="none")
    granted(ledger)
    unfreezes(ledger)
    tightens(ledger)
    backup(ledger, tmp_path / "copy")
    granted(ledger, "0.2", policies=[LOWER])
    ledger.close()
    result = put_back(path, ledger, LOWER)
    assert (result.agrees, result.lost) == (False, ())
    ledger = open_ledger(url(path), witness="none")
    with ledger.storage.read() as reading:
        assert reading.load(lambda s: all_terms(s, "a")).terms("a")
    granted(ledger, "0.1", policies=[LOWER])
    ledger.close()


def test_a_freeze_needs_no_witness(tmp_path: Path) -> None:
    """It is for emergencies; without a witness no step runs anyway."""
    ledger = create_ledger(url(tmp_path / "ledger.db"), witness=str(tmp_path / "w"))
    granted(ledger)
    for file in (tmp_path / "w").iterdir():
        file.unlink()
    freezes(ledger)
    assert (freeze_of(ledger, "a") or {})["reason"] == "wrong sigma"
    with pytest.raises(LedgerUnwitnessed):
        granted(ledger)
    ledger.close()
