"""A change of code and policies: what a reviewer should know, without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpflow.config import Settings, settings
from dpflow.contrib.preview.git import Version, versions
from dpflow.contrib.preview.policies import PolicyDelta, compare_policies, read_policies
from dpflow.contrib.preview.scan import Source, scan
from dpflow.contrib.preview.steps import (
    StepDelta,
    VersionBudgets,
    compare_steps,
    newly_own,
    newly_undrawn,
)
from dpflow.exceptions import DpflowError, InvalidCost
from dpflow.guard.inspection import inspected
from dpflow.ledger import Ledger
from dpflow.ledger.decision.announced import announced_gates
from dpflow.ledger.decision.gates import Gate
from dpflow.ledger.decision.terms import agrees
from dpflow.ledger.rows import Term
from dpflow.ledger.views.accounts import current_gates
from dpflow.ledger.views.terms import book_state
from dpflow.policy import Policy
from dpflow.policy.changes import judge, overall, tightened_pins

_Accounts = Mapping[tuple[str, str], Gate]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a change does.

    Attributes:
        lock: What becomes of the pinned ledger: "same", "new", "changed", "removed".
        problems: What could not be read.
        ledger: Why no ledger was read; None if one was.
    """

    base: str
    head: str
    policies: tuple[PolicyDelta, ...]
    steps: tuple[StepDelta, ...]
    lock: str
    problems: tuple[str, ...]
    ledger: str | None

    @property
    def weaker(self) -> list[str]:
        """What may make a guarantee weaker, in words; empty if nothing does."""
        words = {
            "looser": "is looser",
            "other": "gives another guarantee, which cannot be compared",
            "removed": "is gone",
        }
        found = [
            f"the policy of {each.dataset} {words[each.verdict]}"
            for each in self.policies
            if each.weaker
        ]
        found += [
            f"step {each.name} has lost its guard"
            for each in self.steps
            if each.status == "unguarded"
        ]
        for each in self.steps:
            if newly_undrawn(each.before, each.after):
                more = "" if each.before is None else " any more"
                found.append(f"step {each.name} draws no noise{more}")
            elif newly_own(each.before, each.after):
                found.append(f"step {each.name} draws its own noise from now on")
        if self.lock in ("changed", "removed"):
            found.append(
                f"the pinned ledger is {self.lock}: another one would forget what was "
                "spent"
            )
        return found


def preview(found: Settings, *, base: str | None, head: str | None) -> Preview:
    """Compare two versions of a project; nothing of it is run, and nothing written.

    Args:
        found: The project's settings, of the working tree.
        base: A branch or commit that the change is to be merged into. Default: the
            remote's branch, or main, or master.
        head: The change; None is the working tree.

    Raises:
        ConfigurationError: If git does not know the versions.
    """
    before, after = versions(found.policies, base=base, head=head, root=found.root)
    problems: list[str] = []
    old, new = (read_policies(each, problems) for each in (before, after))
    sources = scan(before.code), scan(after.code)
    problems += _unread(sources[1], after)
    known, why = _accounts(old, new)
    steps = compare_steps(
        *sources,
        VersionBudgets(policies=old, accounts=known[0]),
        VersionBudgets(policies=new, accounts=known[1]),
    )
    return Preview(
        base=before.title,
        head=after.title,
        policies=tuple(compare_policies(old, new)),
        steps=tuple(steps),
        lock=_lock(before, after),
        problems=tuple(problems),
        ledger=why,
    )


def _unread(source: Source, version: Version) -> list[str]:
    return [
        f"{version.title}: {path} is no Python that can be parsed"
        for path in source.unread
    ]


def _lock(before: Version, after: Version) -> str:
    if before.lock == after.lock:
        return "same"
    if before.lock is None:
        return "new"
    return "removed" if after.lock is None else "changed"


def _accounts(
    old: Mapping[str, Policy], new: Mapping[str, Policy]
) -> tuple[tuple[dict[str, _Accounts], dict[str, _Accounts]], str | None]:
    """Return what the ledger says of each dataset, before the change and after it."""
    governing: dict[str, _Accounts] = {}
    changed: dict[str, _Accounts] = {}
    try:
        with inspected(settings(), tell=None) as ledger:
            for dataset in old.keys() | new.keys():
                _read(ledger, dataset, new.get(dataset), governing, changed)
    except DpflowError as error:
        return ({}, {}), error.message
    return (governing, changed), None


def _read(
    ledger: Ledger,
    dataset: str,
    policy: Policy | None,
    governing: dict[str, _Accounts],
    changed: dict[str, _Accounts],
) -> None:
    state = book_state(ledger, dataset)
    known = state.terms(dataset)
    if not known:
        # Nothing was spent: every gate has its whole budget.
        governing[dataset] = changed[dataset] = {}
        return
    found = current_gates(state, dataset).values()
    governing[dataset] = {(each.kind, each.name): each for each in found}
    after = None if policy is None else _after(known[-1], policy, governing[dataset])
    if after is not None:
        changed[dataset] = after


def _after(term: Term, policy: Policy, accounts: _Accounts) -> _Accounts | None:
    """Return the accounts as a policy would leave them; None if it opens a new term."""
    if agrees(term, policy):
        return accounts
    verdict = overall(judge(term.facts["declared"], policy.declared()))
    if verdict in ("same", "neutral"):
        return accounts
    if verdict != "tighter":
        return None
    try:
        tightened = announced_gates(tightened_pins(term.facts["pinned"], policy))
    except InvalidCost:
        return None
    found = dict(accounts)
    for gate in tightened:
        place = (gate.kind, gate.name)
        kept = accounts.get(place)
        if kept is not None:
            found[place] = kept._replace(rule=gate.rule, halt=gate.halt)
    return found
