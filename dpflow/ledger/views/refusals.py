"""Refused steps: the newest, those that one flow run met, and flows they halted."""

from __future__ import annotations

from itertools import islice

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Halt, RefusalView
from dpflow.ledger.rows import split
from dpflow.ledger.views.accounts import governing
from dpflow.ledger.views.charges import root_keys

_NAMED = ("gate", "theorem", "asked", "left", "fits", "step", "flow", "cost")
_EXHAUSTED = BudgetExhausted.__name__


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
        refused = [entry.body for entry in named if entry.kind == "refuse"][after:]
    bodies = [body for body in refused if body.get("covers") is None]
    if not bodies:
        return None
    body = min(bodies, key=lambda body: body["refusal"] != _EXHAUSTED)
    kind = BudgetExhausted if body["refusal"] == _EXHAUSTED else BudgetRefused
    details = {name: body.get(name) for name in _NAMED}
    details["dataset"] = split(body["account"])[0]
    if "refused_with" in body:
        details["refused_with"] = body["refused_with"]
    return kind(body["message"], flow_run=flow_run, **details)


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
    account = str(entry.body["account"])
    return RefusalView(
        dataset=split(account)[0],
        account=account,
        run=entry.body.get("flow_run"),
        body=entry.body,
        at=entry.at,
        term=split(account)[1],
        number=entry.number,
    )


def halts(ledger: Ledger, dataset: str) -> dict[str | None, Halt]:
    """Return what halted each flow: an exhausted budget that no grant came after.

    What an earlier term refused halts no flow whose schedule was resumed since.

    Args:
        ledger: The ledger to read.
        dataset: The dataset; its population's gates refuse, too.
    """
    last: dict[str | None, RefusalView] = {}
    for each in refusals(ledger):
        flow, books = each.body.get("flow"), each.body.get("datasets", [each.dataset])
        if each.body.get("refusal") == _EXHAUSTED and dataset in books:
            last.setdefault(flow, each)
    if not last:
        return {}
    with ledger.storage.read() as reading:
        found, refusing = {}, {each.dataset for each in last.values()}
        terms = {book: governing(reading, book) for book in refusing}
        for flow, each in last.items():
            term = terms[each.dataset]
            current = term is not None and term.number == each.term
            found[flow] = Halt(flow=flow, refusal=each, current=current)
        keys = [*root_keys(reading, dataset), *(f"book/{book}" for book in refusing)]
        first = min(each.number for each in last.values())
        for entry in reading.naming_after(keys, first):
            halt = found.get(entry.body.get("flow"))
            if halt is not None and _answers(entry, halt, dataset):
                del found[halt.flow]
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
