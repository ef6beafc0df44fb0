"""Edits beside the journal that fit each other: copies, gates, releases, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from dpflow.ledger.freeze import freeze
from dpflow.ledger.operations import import_prior

from dpflow.exceptions import BudgetRefused
from dpflow.ledger import Ledger
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.records import canonical, digest
from dpflow.ledger.views import history
from tests.ledger.support import (
    Place,
    edit,
    granted,
    in_memory,
    make_ledger,
    make_policy,
    read,
    request,
)
from tests.ledger.test_verify import KEY

PLAIN = make_policy("b", flows="{f: {epsilon: 0.5}}", other_flows="allow")


@pytest.fixture
def ledger(path: Place) -> Iterator[Ledger]:
    """Return a ledger with releases, a refusal, and a freeze with entries after it."""
    found = make_ledger(path)
    for number in range(2):
        name = granted(found, key=f"week/{number}")
        found.settle(name, value=json.dumps(number))
    ended = granted(found, "0.2")
    freeze(found, "a", who="anna", because="a look at it")
    found.settle(ended)
    found.settle(granted(found, "0.1", policies=[PLAIN], flow="f", flow_run="run"))
    with pytest.raises(BudgetRefused):
        found.reserve(request(found, "9", policies=[PLAIN], flow="f", flow_run="run"))
    yield found
    found.close()


def raised(text: str) -> str:
    """Write a pinned copy with another budget, and the hash that fits it."""
    told = text.replace("'", "''")
    return f"pinned = '{told}', policy_hash = '{digest(text)}'"


def pinned(path: Place, dataset: str) -> dict[str, object]:
    """Read a term's copy."""
    ((text,),) = read(path, f"SELECT pinned FROM term WHERE dataset = '{dataset}'")
    found = json.loads(text)
    assert canonical(found) == text
    return found


def test_a_thaw_that_nobody_decided_is_noticed_after_a_checkpoint(ledger, path):
    """Also where the freeze is before what is read again."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    assert verify(ledger, key=KEY, full=False).fine
    edit(path, "UPDATE account SET state = 'open' WHERE id = 'a#1'")
    found = verify(ledger, key=KEY, full=False).bad
    assert [(each.account, "froze" in each.problem) for each in found] == [
        ("a#1", True)
    ]


def test_a_raised_gate_is_noticed_after_a_checkpoint(ledger, path):
    """Also where the term's copy and its hash were edited to fit it."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    ((rule,),) = read(path, "SELECT rule FROM account WHERE id = 'b#1'")
    copy = pinned(path, "b")
    high = {
        name: "100" if name == "epsilon" else value
        for name, value in json.loads(rule).items()
    }
    copy["filter"] = {n: v for n, v in high.items() if n != "role"}
    edit(
        path,
        f"UPDATE account SET rule = '{canonical(high)}' WHERE id = 'b#1'",
        f"UPDATE term SET {raised(canonical(copy))} WHERE dataset = 'b'",
    )
    assert "b#1" in {each.account for each in verify(ledger, key=KEY, full=False).bad}


def test_an_overdraft_that_was_hidden_is_noticed_after_a_checkpoint(path):
    """The sums tell of it; the state is only the account's."""
    ledger = make_ledger(path)
    granted(ledger, "0.5", policies=[PLAIN])
    import_prior(
        ledger, PLAIN, request(ledger, "3").cost, because="x", evidence="e" * 64
    )
    assert read(path, "SELECT state FROM account WHERE id = 'b#1'") == [("overdrawn",)]
    assert verify(ledger, key=KEY, sign_new=True).fine
    edit(path, "UPDATE account SET state = 'open' WHERE id = 'b#1'")
    assert verify(ledger, key=KEY, full=False).bad
    ledger.close()


@pytest.mark.parametrize("full", [True, False])
def test_a_copy_with_a_hash_that_fits_is_not_the_one_that_was_applied(
    ledger, path, full
):
    """The journal tells the hash; else a flow that is yet to run gets another gate."""
    assert verify(ledger, key=KEY, sign_new=True).fine
    copy = pinned(path, "b")
    copy["officers"] = ["mallory"]
    edit(path, f"UPDATE term SET {raised(canonical(copy))} WHERE dataset = 'b'")
    found = verify(ledger, key=KEY, full=full).bad
    assert any("policy" in each.problem for each in found)


def test_a_release_with_a_digest_that_fits_is_not_what_was_settled(ledger, path):
    """The journal tells the digest of each value."""
    assert verify(ledger).fine
    edit(
        path,
        f"UPDATE release SET value = '99', digest = '{digest('99')}' WHERE value = '1'",
    )
    assert any("release" in each.problem for each in verify(ledger).bad)


def test_releases_that_were_swapped_are_noticed(ledger, path):
    """Each has the key that its charge was made for."""
    assert verify(ledger).fine
    one, other = [key for (key,) in read(path, "SELECT release_key FROM release")]
    aside = "0" * 64
    moves = [(one, aside), (other, one), (aside, other)]
    rename = "UPDATE release SET release_key = '{1}' WHERE release_key = '{0}'"
    edit(path, *(rename.format(*move) for move in moves))
    assert any("release" in each.problem for each in verify(ledger).bad)


def test_a_refusal_that_the_run_forgot_is_noticed(ledger, path):
    """It is what halts the run."""
    assert read(path, "SELECT count(*) FROM refused") != [(0,)]
    assert verify(ledger).fine
    edit(path, "DELETE FROM refused")
    assert any("refus" in each.problem for each in verify(ledger).bad)


def test_an_entry_that_no_history_shows_is_noticed(ledger, path):
    """PostgreSQL keeps an entry's place in the entry itself."""
    if isinstance(path, str) and not in_memory(path):
        assert read(path, "SELECT to_regclass('dpflow.entry_order')") == [(None,)]
        return
    assert verify(ledger).fine
    shown = len(history(ledger, None, limit=100))
    edit(path, "DELETE FROM entry_order WHERE account = 'b#1' AND seq > 1")
    assert len(history(ledger, None, limit=100)) < shown
    found = [(each.account, each.entry) for each in verify(ledger).bad]
    assert found == [("b#1", 2)]
