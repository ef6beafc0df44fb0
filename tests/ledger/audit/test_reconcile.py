"""A ledger that forgot charges is charged again: never too little, and steps go on."""

from __future__ import annotations

import random
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from dpflow.ledger.office import apply_policy

from dpflow.exceptions import (
    BudgetRefused,
    ConfigurationError,
    LedgerCorrupt,
    LedgerRolledBack,
    LedgerUnavailable,
    PolicyChanged,
)
from dpflow.ledger import create_ledger, open_ledger
from dpflow.ledger.audit.reconcile import charge_again, compare, reconcile
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.witness.base import Line
from dpflow.ledger.witness.file import FileWitness
from dpflow.rounding import UNITS
from tests.ledger.audit.books import POLICIES
from tests.ledger.support import (
    audit,
    edit,
    granted,
    kinds,
    make_policy,
    read,
    repairs,
    sums,
    url,
)
from tests.ledger.witness.accidents import (
    ACCIDENTS,
    Host,
    keep,
    went_another_way,
)
from tests.sizes import scaled

WHY = "the disk was restored"


def forgetful(host: Host) -> Host:
    """Let a host charge something, and lose that."""
    copy = host.copy()
    host.work()
    host.replace_by(copy)
    return host


def used(path: Path) -> dict[str, Fraction]:
    """Return what each dataset has used."""
    return {name: sum(sums(path, f"{name}#1")) for name in ("a", "b")}


class Meter(Host):
    """A host that remembers what its steps were granted, wherever its ledger went."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.most = {"a": Fraction(0), "b": Fraction(0)}

    def work(self, ledger=None, least=1):
        """Make charges, and remember the use after them."""
        super().work(ledger, least)
        now = used(self.path)
        self.most = {name: max(now[name], self.most[name]) for name in now}


@pytest.mark.parametrize("accident", ACCIDENTS)
def test_every_accident_is_made_good(tmp_path, accident):
    """Afterwards no account says less than was ever used, and steps run."""
    for seed in range(scaled(2, push=1)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        host = Meter(folder, str(folder / "state"), random.Random(seed))
        host.work()
        accident(host)
        before = used(host.path)
        ledger = host.open()
        result = reconcile(ledger, POLICIES, reason=WHY)
        assert not result.agrees
        after = used(host.path)
        for name, most in host.most.items():
            assert after[name] >= max(most, before[name]), (seed, name)
        if accident is went_another_way:
            # Both ways were gone: what was charged on either counts.
            lost = sum(
                Fraction(line.amounts["a#1"][0], UNITS)
                for loss in result.losses
                for line in loss.missing
                if loss.account == "a#1"
            )
            assert after["a"] == before["a"] + lost
        assert verify(ledger).bad == []
        ledger.settle(granted(ledger, "0.25", policies=[POLICIES["a"]]))
        ledger.close()
        host.work()
        audit(host.path)


def test_a_restored_backup_is_raised_to_exactly_what_was_used(tmp_path):
    """Nothing is charged twice; the repair is recorded, and the old witness kept."""
    host = Host(tmp_path, str(tmp_path / "state"), random.Random(1))
    ledger = host.open()
    for _ in range(3):
        ledger.settle(granted(ledger, "0.25", policies=[POLICIES["a"]]))
    open_one = granted(ledger, "0.5", policies=[POLICIES["a"]])
    copy = host.copy()
    ledger.settle(open_one)
    for _ in range(4):
        ledger.settle(granted(ledger, "0.25", policies=[POLICIES["a"]]))
    file = Path(ledger.watch.witness.place)
    content = file.read_text()
    ledger.close()
    most = used(host.path)["a"]
    host.replace_by(copy)
    (loss,) = reconcile(host.open(), POLICIES, reason=WHY).losses
    assert used(host.path)["a"] == most
    assert (kinds(host.path)[-1], repairs(host.path)) == ("repair", 1)
    ((body,),) = read(host.path, "SELECT body FROM entry WHERE kind = 'repair'")
    assert all(text in body for text in (WHY, *(line.hash for line in loss.missing)))
    # The old witness is the only proof of what was charged.
    assert file.with_name(f"{file.name}.1").read_text().startswith(content)


def test_a_forged_ledger_is_not_made_good(host: Host) -> None:
    """The witness that is begun anew would hide what was forged."""
    edit(forgetful(host).path, "UPDATE entry SET at = 'later' WHERE number = 2")
    with pytest.raises(LedgerCorrupt, match="not what was hashed"):
        reconcile(host.open(), POLICIES, reason=WHY)


def test_comparing_changes_nothing(host: Host) -> None:
    """Nor does a repair of a ledger that agrees."""
    every = "SELECT * FROM entry"
    before = read(host.path, every)
    assert reconcile(host.open(), POLICIES, reason=WHY).agrees
    assert (read(host.path, every), repairs(host.path)) == (before, 0)
    comparison = compare(forgetful(host).open())
    assert {loss.account for loss in comparison.losses} >= {"a#1"}
    assert before == read(host.path, every)


def test_a_crash_before_the_witness_begins_anew_charges_nothing_twice(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is repaired, and the old witness still names lost charges."""
    ledger = forgetful(host).open()
    assert ledger.watch.witness is not None
    with monkeypatch.context() as patch:
        enrol = Mock(side_effect=KeyboardInterrupt)
        patch.setattr(type(ledger.watch.witness), "enrol", enrol)
        with pytest.raises(KeyboardInterrupt):
            reconcile(ledger, POLICIES, reason=WHY)
    first = used(host.path)
    ledger = host.open()
    with pytest.raises(LedgerRolledBack):
        granted(ledger, "0.25", policies=[POLICIES["a"]])
    result = reconcile(ledger, POLICIES, reason=WHY)
    assert (result.agrees, result.losses, result.again > 0) == (False, (), True)
    assert used(host.path) == first
    granted(ledger, "0.25", policies=[POLICIES["a"]])


def test_a_compacted_witness_raises_to_the_last_use(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compacted witness lacks old lines; its newest line holds the usage."""
    copy = host.copy()
    ledger = host.open()
    witness = ledger.watch.witness
    assert witness is not None
    host.work(ledger)
    for _ in range(60):
        ledger.settle(granted(ledger, "0.25", policies=[POLICIES["a"]]))
    kept = Path(witness.place).read_text().count("\n")
    keep(3, monkeypatch)
    granted(ledger, "0.25", policies=[POLICIES["a"]])
    assert Path(witness.place).read_text().count("\n") < kept / 2
    ledger.close()
    most = used(host.path)
    host.replace_by(copy)
    ledger = host.open()
    reconcile(ledger, POLICIES, reason=WHY)
    after = used(host.path)
    assert after["a"] == most["a"]
    assert after["b"] >= most["b"]


@pytest.mark.parametrize("decided", [False, True])
def test_a_compacted_witness_of_another_way_counts_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decided: bool
) -> None:
    """That it kept the opening of a term does not say that it kept every charge."""
    host = Host(tmp_path, str(tmp_path / "state"), random.Random(1))
    ledger = host.open()
    if decided:
        apply_policy(ledger, POLICIES["a"])
    ledger.settle(granted(ledger, "0.25", policies=[POLICIES["a"]]))
    copy = host.copy()
    for _ in range(10):
        ledger.settle(granted(ledger, "0.25", policies=[POLICIES["a"]]))
    witness = ledger.watch.witness
    assert isinstance(witness, FileWitness)
    for _ in range(5):
        ledger.settle(granted(ledger, "0.25", policies=[POLICIES["b"]]))
    keep(3, monkeypatch)
    ledger.settle(granted(ledger, "0.25", policies=[POLICIES["b"]]))
    lines = [line for line in witness.all_lines() if "a" in line.books]
    assert [line.decides for line in lines] == [True] * decided + [False]
    ledger.close()
    host.replace_by(copy)
    elsewhere = open_ledger(url(host.path), witness="none")
    for _ in range(20):
        elsewhere.settle(granted(elsewhere, "0.25", policies=[POLICIES["a"]]))
    elsewhere.close()
    reconcile(host.open(), POLICIES, reason=WHY)
    assert used(host.path)["a"] >= (1 + 10 + 20) * Fraction("0.25")


def test_another_way_that_was_short_counts_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moved the account by entries of numbers below those of the lost charges."""
    host = Host(tmp_path, str(tmp_path / "state"), random.Random(1))
    host.open().close()
    copy, ledger = host.copy(), host.open()
    for name in "bbbbabbbb":
        granted(ledger, "0.25", policies=[POLICIES[name]])
    ledger.close()
    host.replace_by(copy)
    elsewhere = open_ledger(url(host.path), witness="none")
    granted(elsewhere, "0.25", policies=[POLICIES["a"]])
    elsewhere.close()
    keep(3, monkeypatch)
    reconcile(host.open(), POLICIES, reason=WHY)
    assert used(host.path)["a"] == 2 * Fraction("0.25")


def test_a_lost_account_without_a_policy_is_not_forgotten(
    host: Host,
) -> None:
    """Nothing is repaired before the policy is back, and under no other filter."""
    empty = host.folder / "empty"
    create_ledger(url(empty), witness="none").close()
    ledger_id = host.open().id
    edit(empty, f"UPDATE ledger SET ledger_id = '{ledger_id}'")
    host.replace_by(empty)
    ledger = host.open()
    with pytest.raises(ConfigurationError, match="no policy makes it"):
        reconcile(ledger, {}, reason=WHY)
    # One tally is added up under another: 0.25 of epsilon is 0.03 of rho.
    other = make_policy("a", budget="{epsilon: 1, delta: 1e-6}", filter="zcdp")
    for repair in (
        partial(reconcile, ledger, {**POLICIES, "a": other}, reason=WHY),
        partial(apply_policy, ledger, other),
    ):
        with pytest.raises(ConfigurationError, match="opened with another filter"):
            repair()
    assert read(host.path, "SELECT count(*) FROM entry") == [(0,)]
    # Under another budget they mean the same.
    lower = make_policy("a", budget="{epsilon: 90}")
    reconcile(ledger, {**POLICIES, "a": lower}, reason=WHY)
    granted(ledger, "0.25", policies=[lower])


def test_parts_of_windows_are_repaired_under_their_own_filter(host: Host) -> None:
    """They belong to no term, so the newest one has to be in their currency."""
    weeks = {"unit": "customer-week", "partition": "{by: week}"}
    weeks |= {"window": "{length: 2}", "budget": "{epsilon: 3, delta: 1e-6}"}
    first = make_policy("c", **weeks, filter="{theorem: rdp, order: 8}")
    second, ledger = make_policy("c", **weeks, filter="gdp"), host.open()
    part: dict[str, Any] = {"partitions": ("2026-W10",)}
    with pytest.raises(BudgetRefused):
        granted(ledger, "9", policies=[first], **part)
    copy = host.copy()
    granted(ledger, "0.1", policies=[second], **part)
    ledger.close()
    host.replace_by(copy)
    ledger = host.open()
    with pytest.raises(ConfigurationError, match="opened with another filter"):
        reconcile(ledger, {"c": second}, reason=WHY)
    assert apply_policy(ledger, second).action == "replace"
    reconcile(ledger, {"c": second}, reason=WHY)
    assert sum(sums(host.path, "c#/partition/2026-W10")) > 0
    ledger.close()


def test_a_lost_share_is_charged_again_once_its_policy_is_applied(host: Host) -> None:
    """A new term would leave it lost, so the error says which command opens it."""
    copy, ledger = host.copy(), host.open()
    share = make_policy("a", flows="{f: {epsilon: 0.5}}", other_flows="allow")
    apply_policy(ledger, share)
    granted(ledger, policies=[share], flow="f")
    ledger.close()
    host.replace_by(copy)
    ledger = host.open()
    with pytest.raises(ConfigurationError, match="run `dpflow policy apply a`"):
        reconcile(ledger, {"a": share}, reason=WHY)
    apply_policy(ledger, share)
    reconcile(ledger, {"a": share}, reason=WHY)
    assert sums(host.path, "a#1/flow/f") == (Fraction("0.1"), 0)


# A new machine


def test_a_charge_between_a_repair_and_its_new_witness_is_witnessed(host: Host) -> None:
    """The charge stands in the old witness; a ledger that lacks it is still noticed."""
    ledger, second = host.open(), host.open()
    granted(ledger, "0.25", policies=[POLICIES["b"]])
    ((number,),) = read(host.path, "SELECT max(number) FROM entry")
    sum_of = {"b#1": (UNITS, 0)}
    lost = Line(number + 1, "f" * 64, "adjust", None, sum_of, sum_of, None, ("b",))
    assert ledger.watch.witness is not None
    enrol, copies = ledger.watch.witness.enrol, []

    def late(*arguments: Any, **options: Any) -> None:
        copies.append(host.copy())
        granted(second, "0.25", policies=[POLICIES["a"]])
        enrol(*arguments, **options)

    ledger.watch.witness.enrol = late  # type: ignore[method-assign]
    charge_again(ledger, POLICIES, reason=WHY, others=[lost])
    granted(second, "0.25", policies=[POLICIES["b"]])
    ledger.close()
    second.close()
    assert verify(host.open()).fine
    host.replace_by(copies[0])
    (loss,) = [one for one in compare(host.open()).losses if one.account == "a#1"]
    assert loss.present != loss.repaired


def test_two_repairs_in_parallel_charge_once(host: Host) -> None:
    """What the second read of the witness is old when it has the lock."""
    first, second = forgetful(host).open(), host.open()
    asking, repaired = second.ask, []

    def late(*arguments: Any, **options: Any) -> Any:
        reconcile(first, POLICIES, reason=WHY)
        repaired.append(used(host.path))
        return asking(*arguments, **options)

    second.ask = late  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailable, match="meanwhile, and this"):
        reconcile(second, POLICIES, reason=WHY)
    assert repaired == [used(host.path)]
    second.ask = asking  # type: ignore[method-assign]
    assert reconcile(second, POLICIES, reason=WHY).agrees


# What comes after a repair


def test_a_repair_of_a_part_has_an_account_of_the_whole(host: Host) -> None:
    """Without it the term counts as uncharged, and any policy replaces it."""
    policy = make_policy("p", partition="{by: region}")
    copy, step = host.copy(), {"partitions": ("x",)}
    ledger = host.open()
    ledger.settle(granted(ledger, "1", policies=[policy], **step))
    ledger.close()
    host.replace_by(copy)
    ledger = host.open()
    reconcile(ledger, {**POLICIES, "p": policy}, reason=WHY)
    wider = make_policy("p", budget="{epsilon: 1.1}", partition="{by: region}")
    with pytest.raises(PolicyChanged):
        granted(ledger, "0.1", policies=[wider], **step)
    assert verify(ledger).fine


def test_a_repair_notes_the_flows_that_were_charged(host: Host) -> None:
    """What a flow used without a share cannot be set against one afterwards."""
    policy = make_policy("p", flows="{f: {}, g: {}}")
    ledger = host.open()
    granted(ledger, "0.01", policies=[policy], flow="g")
    copy = host.copy()
    ledger.settle(granted(ledger, "0.5", policies=[policy], flow="f"))
    ledger.close()
    host.replace_by(copy)
    ledger = host.open()
    reconcile(ledger, {**POLICIES, "p": policy}, reason=WHY)
    with pytest.raises(PolicyChanged, match=r"flows\.f\.epsilon"):
        apply_policy(ledger, make_policy("p", flows="{f: {epsilon: 0.3}, g: {}}"))
