"""Alerts: an account's use reaches a fraction that the policy names; once a term."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from dpflow.accounting.tally import Tally
from dpflow.accounting.theorem import Filter
from dpflow.ledger.account import Account, now
from dpflow.ledger.database import Session
from dpflow.ledger.records import Alert
from dpflow.policy import Policy
from dpflow.rounding import number_text

#: Kinds of accounts that have the budget of a policy.
_KINDS = ("dataset", "partition", "population")


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
    if account.kind not in _KINDS or not isinstance(rule, Filter) or not policy.alerts:
        return []
    if rule.admits(_enlarged(used, _exactly(policy.alerts[0]))):
        return []
    reached = rule.used_fraction(used)
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
                    threshold=text,
                    used_fraction=reached,
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
