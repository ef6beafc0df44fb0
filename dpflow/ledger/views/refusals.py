"""Refused steps: the newest, those that one flow run met, and flows they halted."""

from __future__ import annotations

from itertools import islice

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import RefusalView
from dpflow.ledger.views.accounts import governing
from dpflow.ledger.views.charges import root_keys

_NAMED = ("gate", "theorem", "asked", "left", "fits", "step", "flow", "cost")


def count_refusals(ledger: Ledger, flow_run: str) -> int:
    """Return how many refusals a flow run has met."""
    with ledger.storage.read() as reading:
        return reading.load(lambda _: [f"run/{flow_run}"]).run(flow_run).refusals


def refusal_of_run(
    ledger: Ledger, flow_run: str, *, after: int = 0
) -> BudgetRefused | None:
    """Return the refusal that a flow run met, if it met one.

    An exhausted budget is returned before a refused step, for it ends the flow. A
    preflight that was refused ends no run: its releases may all be replayed.

    Args:
        ledger: The ledger to read.
        flow_run: Id of the run.
        after: How many refusals to pass over, oldest first: those of an earlier
            execution of the run, which a new term or another policy may have answered.
    """
    with ledger.storage.read() as reading:
        named = reading.naming_after([f"run/{flow_run}"])
        refused = [_view(entry) for entry in named if entry.kind == "refuse"][after:]
    steps = [each for each in refused if each.body.get("covers") is None]
    if not steps:
        return None
    found = min(steps, key=lambda each: not each.is_exhausted)
    kind = BudgetExhausted if found.is_exhausted else BudgetRefused
    details = {name: found.body.get(name) for name in _NAMED}
    details["dataset"] = found.dataset
    if "refused_with" in found.body:
        details["refused_with"] = found.body["refused_with"]
    return kind(found.body["message"], flow_run=flow_run, **details)


def refusals(
    ledger: Ledger, *, dataset: str | None = None, limit: int = 1000
) -> list[RefusalView]:
    """Return the refused steps, newest first.

    Args:
        ledger: The ledger to read.
        dataset: Only those that this dataset's gates refused.
        limit: Largest number of entries that are read.
    """
    with ledger.storage.read() as reading:
        found = [_view(entry) for entry in islice(reading.rare("refuse"), limit)]
    return [each for each in found if dataset in (None, each.dataset)]


def _view(entry: Entry) -> RefusalView:
    account, body = str(entry.body["account"]), entry.body
    return RefusalView(account=account, body=body, at=entry.at, number=entry.number)


def halts(ledger: Ledger, dataset: str) -> dict[str | None, RefusalView]:
    """Return the exhausted budget that halts each flow: no grant came after it.

    The refusal of an earlier term halts no flow.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; its population's gates refuse, too.
    """
    newest: dict[str | None, RefusalView] = {}
    for refusal in refusals(ledger):
        if refusal.is_exhausted and dataset in refusal.body["datasets"]:
            newest.setdefault(refusal.body.get("flow"), refusal)
    if not newest:
        return {}
    with ledger.storage.read() as reading:
        books = {refusal.dataset for refusal in newest.values()}
        terms = {term.whole for book in books if (term := governing(reading, book))}
        first = min(refusal.number for refusal in newest.values())
        for entry in reading.naming_after(root_keys(reading, dataset), first):
            refused = newest.get(flow := entry.body.get("flow"))
            granted = entry.kind == "reserve" and dataset in entry.body["datasets"]
            if refused and granted and entry.number > refused.number:
                del newest[flow]
    return {f: r for f, r in newest.items() if f"{r.dataset}#{r.term}" in terms}
