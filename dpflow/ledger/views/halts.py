"""Flows that an exhausted budget halted, and that were granted nothing since."""

from __future__ import annotations

from dpflow.exceptions import BudgetExhausted
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys
from dpflow.ledger.records import Halt, RefusalView
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.views.refusals import refusals


def halts(ledger: Ledger, dataset: str) -> dict[str | None, Halt]:
    """Return what halted each flow: an exhausted budget that no grant came after.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; its population's gates refuse, too.
    """
    last: dict[str | None, RefusalView] = {}
    for each in refusals(ledger):
        body = each.body
        exhausted = body.get("refusal") == BudgetExhausted.__name__
        if exhausted and dataset in body.get("datasets", [each.dataset]):
            last.setdefault(body.get("flow"), each)
    found: dict[str | None, Halt] = {}
    with ledger.storage.read() as reading:
        books = (dataset, *{each.dataset for each in last.values()} - {dataset})
        state = reading.load(Keys(books=tuple(sorted(books))))
        for flow, each in last.items():
            if _granted_since(reading, dataset, flow, each):
                continue
            term = state.newest(each.dataset)
            current = term is not None and term.number == each.term
            found[flow] = Halt(flow=flow, refusal=each, current=current)
    return found


def _granted_since(
    reading: Reading, dataset: str, flow: str | None, refusal: RefusalView
) -> bool:
    """Say whether a flow was granted a step on a dataset after it was refused one.

    What follows in the journal that has the refusal is known to be later; in another
    one, what bears a later time.
    """
    for entry in reading.after(refusal.book, refusal.position):
        if _grants(entry, dataset, flow):
            return True
    if refusal.book == dataset:
        return False
    for entry in reading.newest(dataset):
        if entry.at <= refusal.at:
            return False
        if _grants(entry, dataset, flow):
            return True
    return False


def _grants(entry: Entry, dataset: str, flow: str | None) -> bool:
    body = entry.body
    return (
        entry.kind == "reserve"
        and body.get("flow") == flow
        and dataset in body["datasets"]
    )
