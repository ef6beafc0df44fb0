"""The journal for people and programs, and what people decided about the budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpflow.config import settings
from dpflow.guard.inspection import Tell, as_warning, inspect_reading
from dpflow.ledger import split_account, views
from dpflow.ledger.decisions.refusals import amounts_text
from dpflow.ledger.views.accounts import check_dataset
from dpflow.ledger.views.entries import JournalEntry, percent_text
from dpflow.notebook import Sheet, TableRecord, escape_key
from dpflow.policy.files import readable_policies
from dpflow.show.why import minute

#: What is said of each kind of entry.
_WORDS = {
    "tighten": "tightened",
    "access": "access changed",
    "upgrade": "ledger upgraded",
    "freeze": "frozen",
    "unfreeze": "unfrozen",
    "forfeit": "charge closed in full",
    "repair": "lost charges charged again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class History(TableRecord):
    """The newest entries of the journal: what `dpflow history` shows.

    In a notebook it is a table.

    Attributes:
        ledger: Id of the ledger.
        place: Where it is.
        entries: The newest first.
        more: Whether there are older ones.
        decisions: Whether they are what people decided, and no charges.
        all_accounts: Whether entries of shares and odometers are among them.
        any_policy: Whether the project has a policy.
        details: Whether the table has the amounts of each component, too.
    """

    ledger: str
    place: str
    entries: tuple[JournalEntry, ...]
    more: bool
    decisions: bool
    all_accounts: bool = field(default=False, repr=False)
    any_policy: bool
    details: bool = field(default=False, repr=False)

    def sheet(self) -> Sheet:
        """Return its table; without empty columns."""
        items, names = self.entries, [item.gate.dataset for item in self.entries]
        columns = {"when (UTC)": [minute(item.at) for item in items]}
        if self.decisions:
            return decisions_sheet(items)
        ids = [item.account for item in items] if self.all_accounts else []
        columns |= {
            "entry": [item.kind for item in items],
            "account": ids,
            "dataset": names if len({*names}) > 1 and not ids else [],
            "step, flow": [_place(item) for item in items],
            "used": [_percent(item.share) for item in items],
            "remaining": [_percent(item.left_share) for item in items],
            "release key": [escape_key(e.body.get("release_key") or "") for e in items],
            "outcome": [self._outcome(item) for item in items],
        }
        if self.details:
            columns |= {
                "amount": [amounts_text(item.amount) for item in items],
                "settled after": [amounts_text(e.settled_after) for e in items],
            }
        return Sheet.of(columns, "when (UTC)", "used", "remaining")

    @property
    def messages(self) -> list[str]:
        """What outcomes say in full; a repeated message stands once."""
        return [*dict.fromkeys(e.message for e in self.entries if e.message)]

    def _outcome(self, item: JournalEntry) -> str:
        message = item.message
        note = f" ({self.messages.index(message) + 1})" if message else ""
        return item.outcome + note


def _place(item: JournalEntry) -> str:
    names = item.body.get("step"), item.body.get("flow"), split_account(item.account)[4]
    return ", ".join(map(str, filter(None, names)))


def decisions_sheet(items: Sequence[JournalEntry]) -> Sheet:
    """Return what people decided: when, who and why; without empty columns."""
    columns = {
        "when (UTC)": [minute(item.at) for item in items],
        "decision": [_decision(item) for item in items],
        "dataset": [item.gate.dataset for item in items],
        "what": [_what(item) for item in items],
        "who": [str(e.body.get("who") or e.writer) for e in items],
        "reason": [str(item.body.get("reason") or "") for item in items],
    }
    return Sheet.of(columns)


def _percent(share: float | None) -> str:
    return "" if share is None else percent_text(share)


def history(
    dataset: str | None = None,
    *,
    limit: int = 30,
    all_accounts: bool = False,
    decisions: bool = False,
    tell: Tell = as_warning,
) -> History:
    """Return the newest entries of the journal.

    Nothing is charged, and nothing is written.

    Args:
        dataset: Only this one. Default: all of the project.
        limit: The most entries.
        all_accounts: Also what each charge posted to shares and odometers.
        decisions: Only what people decided: terms, tightenings, freezes, and what was
            charged by hand.
        tell: Hears what is wrong with numbers that are printed all the same.

    Raises:
        UnknownDataset: If neither the ledger nor a policy knows it.
        LedgerError: If the ledger is missing or out of reach.

    Examples:
        >>> history("orders", limit=5).entries[0].kind
    """
    setup = settings()
    with inspect_reading(setup, tell=tell) as reading:
        # One more than the limit says whether there are more.
        kinds = {"all_accounts": all_accounts, "decisions": decisions}
        items = views.history(reading, dataset, limit=limit + 1, **kinds)
        policies = readable_policies(setup.policies)
        if not items and dataset is not None:
            check_dataset(reading, policies, dataset)
        if not items and policies.problem is not None:
            tell(policies.problem)
        return History(
            ledger=reading.id,
            place=reading.address,
            entries=tuple(items[:limit]),
            more=len(items) > limit,
            decisions=decisions,
            all_accounts=all_accounts,
            any_policy=bool(policies) or policies.problem is not None,
        )


def _decision(item: JournalEntry) -> str:
    if item.kind == "open":
        return f"term {split_account(item.account)[1]} opened"
    if item.kind == "adjust":
        return "charge raised" if item.reservation else "prior charged"
    if all(str(line).startswith("about") for line in item.body.get("changes") or "-"):
        return "description changed"
    return _WORDS.get(item.kind, item.kind)


def _what(item: JournalEntry) -> str:
    """Say what was decided: a promise, its changes, or what was charged on whom."""
    body = item.body
    if item.kind == "open":
        return item.opened_with
    if item.kind in ("tighten", "access"):
        return "; ".join(map(str, body.get("changes", ())))
    if not item.amount:
        return ""
    step = f"step {body['step']}: " if item.reservation and body.get("step") else ""
    return f"{step}{amounts_text(item.amount)}"
