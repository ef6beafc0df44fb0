"""An auditor by other hands: what a ledger's tables must say, given its journals.

It reads the raw tables, on whatever database, and knows nothing of dpflow's own sums
and hashes. Everything that it checks holds after each commit.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from fractions import Fraction

from tests.ledger.support import UNIT, Place, read

ENDS = {"settle": "settled", "void": "void", "forfeit": "forfeited"}
COLUMNS = "dataset, number, at, writer, kind, command, charge, step, flow, run"


def hashed(*columns: object) -> str:
    """Return the hash of columns, each with its length."""
    texts = [b"-" if c is None else str(c).encode() for c in columns]
    pairs = zip(texts, columns, strict=True)
    parts = [t if c is None else b"%d:%s" % (len(t), t) for t, c in pairs]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def audited(place: Place, cap: Fraction | None = None) -> dict[str, str]:
    """Recompute a ledger from its journals alone, and compare its tables.

    Args:
        place: Where the ledger is.
        cap: The budget of every dataset; None if they differ.

    Returns:
        The state of each charge.
    """
    tops: dict[str, tuple[int, str]] = {}
    heads: dict[str, tuple[int, str]] = {}
    query = "SELECT ledger.id, name, number, dataset.hash FROM ledger, dataset"
    for ledger, dataset, number, stored in read(place, query):
        heads[dataset] = 0, hashed(ledger, dataset)
        tops[dataset] = (number, stored) if number else heads[dataset]
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    ends: dict[tuple[str, str], str] = {}
    query = f"SELECT {COLUMNS}, postings, body, hash FROM journal ORDER BY 1, 2"
    for *columns, stored in read(place, query):
        dataset, number, *_, postings, _ = columns
        kind, charge = columns[4], columns[6]
        last, before = heads[dataset]
        expected = last + 1, hashed(before, *columns)
        assert (number, stored) == expected, "the chain is broken"
        heads[dataset] = expected
        if kind == "reserve":
            assert (charge, dataset) not in ends, "reserved twice"
            ends[charge, dataset] = "open"
        elif kind in ENDS:
            assert ends[charge, dataset] == "open", "ended twice"
            ends[charge, dataset] = ENDS[kind]
        for account, (settled, held) in json.loads(postings).items():
            sums[account][0] += settled[0]
            sums[account][1] += held[0]
    assert tops == heads, "a head is wrong"
    states: dict[str, str] = {}
    open_sums: dict[str, int] = defaultdict(int)
    for name, state, amounts in read(place, "SELECT id, state, amounts FROM charge"):
        states[name] = state
        for account, amount in json.loads(amounts).items() if state == "open" else ():
            open_sums[account] += amount[0][0]
    assert all(states[charge] == state for (charge, _), state in ends.items())
    assert {charge for charge, _ in ends} == {*states}, "charges without entries"
    used: dict[str, int] = defaultdict(int)
    for account, *texts in read(place, "SELECT id, settled, held FROM account"):
        settled, held = (json.loads(text)[0] for text in texts)
        assert [settled, held] == sums.pop(account), "a sum is wrong"
        assert held == open_sums[account], "held is not what open charges hold"
        assert min(settled, held) >= 0, "less than nothing"
        if "/" not in account:
            used[account.partition("#")[0]] += settled + held
    assert not sums, "an account is missing"
    assert cap is None or max(used.values(), default=0) <= cap * UNIT, "overspent"
    return states
