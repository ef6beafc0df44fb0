"""Refused steps: the newest, those that one flow run met, and flows they halted."""

from __future__ import annotations

from itertools import islice

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Halt, RefusalView
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
        limit: Read at most so many entries.
    """
    with ledger.storage.read() as reading:
        found = [_view(entry) for entry in islice(reading.rare("refuse"), limit)]
    return [each for each in found if dataset in (None, each.dataset)]


def _view(entry: Entry) -> RefusalView:
    account, body = str(entry.body["account"]), entry.body
    return RefusalView(account=account, body=body, at=entry.at, number=entry.number)


def halts(ledger: Ledger, dataset: str) -> dict[str | None, Halt]:
    """Return what halted each flow: an exhausted budget that no grant came after.

    What an earlier term refused halts no flow whose schedule was resumed since.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; its population's gates refuse, too.
    """
    newest: dict[str | None, RefusalView] = {}
    for each in refusals(ledger):
        if each.is_exhausted and dataset in each.body["datasets"]:
            newest.setdefault(each.body.get("flow"), each)
    if not newest:
        return {}
    with ledger.storage.read() as reading:
        books = {each.dataset for each in newest.values()}
        terms = {term.whole for book in books if (term := governing(reading, book))}
        found = {
            flow: Halt(refusal=each, current=f"{each.dataset}#{each.term}" in terms)
            for flow, each in newest.items()
        }
        keys = [*root_keys(reading, dataset), *(f"book/{book}" for book in books)]
        first = min(each.number for each in newest.values())
        for entry in reading.naming_after(keys, first):
            flow = entry.body.get("flow")
            if flow in found and _answers(entry, found[flow], dataset):
                del found[flow]
                if not found:
                    break
    return found


def _answers(entry: Entry, halt: Halt, dataset: str) -> bool:
    """Say whether a flow was granted a step, or was resumed in a newer term."""
    if entry.number <= halt.refusal.number:
        return False
    if entry.kind == "resume":
        return not halt.current and halt.refusal.dataset in entry.body["books"]
    return entry.kind == "reserve" and dataset in entry.body["datasets"]
