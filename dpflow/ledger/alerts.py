"""What is told once a term: its first charge, and the thresholds that it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Filter
from dpflow.exceptions import InvalidCost
from dpflow.ledger.account import Account, now, partition_of
from dpflow.ledger.database import Session
from dpflow.ledger.records import Alert, AlertView, TermOpened
from dpflow.ledger.terms import Term
from dpflow.policy import Policy
from dpflow.rounding import number_from_text, number_text

#: Kinds of accounts that have the budget of a policy.
_KINDS = ("dataset", "partition", "population")
#: The mark of a term's first charge, among the thresholds; those are numbers.
_OPENED = "opened"


def new_alerts(
    session: Session, policy: Policy, account: Account, asked: Tally
) -> list[Alert]:
    """Note the thresholds that a charge reaches, and return those not told before.

    Args:
        session: The transaction that holds the charge.
        policy: The file; thresholds are no part of the guarantee.
        account: As it was before the charge.
        asked: What the charge holds.
    """
    rule = account.rule
    used = account.settled + account.held + asked
    if not policy.alerts:
        return []
    if isinstance(rule, Filter) and rule.admits(
        _enlarged(used, _exactly(policy.alerts[0]))
    ):
        return []
    reached = account.used_share(used)
    if reached is None:
        return []
    found = []
    for threshold in map(Fraction, policy.alerts):
        if reached < threshold:
            break
        text = number_text(threshold)
        if session.change("note_alert", account=account.id, threshold=text, at=now()):
            found.append(
                Alert(
                    dataset=account.dataset,
                    account=account.id,
                    gate=account.kind,
                    name=account.name,
                    threshold=text,
                    used_fraction=reached,
                )
            )
    return found


def alert_text(alert: Alert | AlertView) -> str:
    """Say which gate has used how much, in words."""
    percent = _percent(alert.threshold)
    part = partition_of(alert.account)
    where = f"{alert.name} on {alert.dataset}{f' in {part}' if part else ''}"
    if alert.gate == "odometer":
        return f"the odometer of {where} has gone {percent} of the way to its halt"
    if alert.gate == "flow":
        return f"{percent} of the share of {where} is used"
    return f"{percent} of the budget of {alert.account} is used"


def _percent(threshold: str) -> str:
    try:
        return f"{float(100 * number_from_text(threshold)):g}%"
    except InvalidCost:
        # An edited ledger can hold anything; a page shows it as it is.
        return threshold


def new_terms(
    session: Session, terms: Sequence[Term], accounts: Sequence[Account]
) -> list[TermOpened]:
    """Note the terms that are charged for the first time, and return them.

    Args:
        session: The transaction that holds the charge.
        terms: Those under which the charge was decided.
        accounts: Those charged, as they were before the charge.
    """
    # A mark is asked for where an account was empty only: most steps ask for none.
    empty = {
        (account.dataset, account.term)
        for account in accounts
        if account.kind in _KINDS and not any((account.settled + account.held).amounts)
    }
    found = []
    for term in terms:
        if (term.dataset, term.number) not in empty:
            continue
        mark = {"account": term.account, "threshold": _OPENED, "at": now()}
        if session.change("note_alert", **mark):
            budget = term.pinned["budget"]
            found.append(
                TermOpened(
                    dataset=term.dataset,
                    account=term.account,
                    term=term.number,
                    because=term.because,
                    epsilon=str(budget["epsilon"]),
                    delta=str(budget["delta"]),
                )
            )
    return found


def _enlarged(used: Tally, threshold: Fraction) -> Tally:
    """Return the use that would fill the budget if this one fills the threshold.

    Deciding is much cheaper than reading a fraction, and most steps are far below.
    """
    above, below = threshold.numerator, threshold.denominator
    # The quotient, rounded up, in whole numbers.
    amounts = (-(-amount * below // above) for amount in used.amounts)
    return Tally(tuple(amount + 1 if amount else 0 for amount in amounts))


_exactly = lru_cache(maxsize=256)(Fraction)
