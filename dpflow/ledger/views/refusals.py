"""Refused steps: the newest, those that one flow run met, and flows they halted."""

from __future__ import annotations

from itertools import chain, islice, takewhile

from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.entry import Entry
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.model import Keys, Reach
from dpflow.ledger.records import Halt, RefusalView
from dpflow.ledger.rows import split
from dpflow.ledger.storage.transaction import Reading
from dpflow.ledger.views.history import newest_first

_NAMED = ("gate", "theorem", "asked", "left", "fits", "step", "flow", "cost")


def count_refusals(ledger: Ledger, flow_run: str) -> int:
    """Return how many refusals a flow run has met."""
    with ledger.storage.read() as reading:
        return len(
            reading.load(Keys(runs=(flow_run,), reach=Reach.ENTRIES))
            .run(flow_run)
            .refused
        )


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
        run = reading.load(Keys(runs=(flow_run,), reach=Reach.ENTRIES)).run(flow_run)
        places = [(book, number) for book, number, _ in run.refused[after:]]
        entries = reading.entries(places)
    bodies = [entries[place].body for place in places]
    bodies.sort(key=lambda body: body["refusal"] != BudgetExhausted.__name__)
    for body in bodies:
        if body.get("covers") is not None:
            continue
        kind = {k.__name__: k for k in (BudgetExhausted, BudgetRefused)}
        details = {name: body.get(name) for name in _NAMED}
        details["dataset"] = book_of_account(body["account"])
        if "refused_with" in body:
            details["refused_with"] = body["refused_with"]
        return kind[body["refusal"]](body["message"], flow_run=flow_run, **details)
    return None


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
        every = newest_first(reading.rare(book, "refuse") for book in reading.books())
        # A step that gates of several books refuse stands in each of them.
        found = {entry.charge: _view(entry) for entry in islice(every, limit)}
    return [each for each in found.values() if dataset in (None, each.dataset)]


def _view(entry: Entry) -> RefusalView:
    account = str(entry.body["account"])
    return RefusalView(
        dataset=book_of_account(account),
        account=account,
        run=entry.body.get("flow_run"),
        body=entry.body,
        at=entry.at,
        term=split(account)[1],
        book=entry.book,
        position=entry.number,
    )


def book_of_account(account: str) -> str:
    """Return the dataset or population that an account is of."""
    return account.partition("#")[0]


def halts(ledger: Ledger, dataset: str) -> dict[str | None, Halt]:
    """Return what halted each flow: an exhausted budget that no grant came after.

    What an earlier term refused halts no flow whose schedule was resumed since.

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
            term = state.newest(each.dataset)
            current = term is not None and term.number == each.term
            if not _answered(reading, dataset, each, resumed=not current):
                found[flow] = Halt(flow=flow, refusal=each, current=current)
    return found


def _answered(
    reading: Reading, dataset: str, refusal: RefusalView, *, resumed: bool
) -> bool:
    """Say whether a flow was granted a step on a dataset after it was refused one.

    What follows in the journal that has the refusal is known to be later; in another
    one, what bears a later time.

    Args:
        reading: The ledger.
        dataset: The dataset.
        refusal: Of the flow's step.
        resumed: Also say so if its schedule was resumed since.
    """
    flow, other = refusal.body.get("flow"), refusal.book != dataset
    elsewhere = reading.newest(dataset) if other else iter(())
    later = takewhile(lambda entry: entry.at > refusal.at, elsewhere)
    return any(
        entry.body.get("flow") == flow
        and (
            (resumed and entry.kind == "resume" and entry.book == refusal.book)
            or (entry.kind == "reserve" and dataset in entry.body["datasets"])
        )
        for entry in chain(reading.after(refusal.book, refusal.position), later)
    )
