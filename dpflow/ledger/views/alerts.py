"""The thresholds of use that accounts have reached."""

from __future__ import annotations

from dpflow.exceptions import InvalidCost
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Alert, AlertView
from dpflow.ledger.rows import split
from dpflow.ledger.views.accounts import load_book, partition_of
from dpflow.rounding import number_from_text


def alerts(ledger: Ledger, dataset: str) -> list[AlertView]:
    """Return the alerts that a dataset's accounts have given, newest first."""
    with ledger.storage.read() as reading:
        told = [
            (threshold, account.id, number)
            for account in load_book(reading, dataset).accounts(dataset)
            for threshold, number in account.told.items()
        ]
        entries = reading.entries({number for _, _, number in told})
    told.sort(reverse=True)
    return [
        AlertView(
            dataset=dataset,
            account=account,
            gate=split(account)[2],
            name=split(account)[3],
            threshold=threshold,
            at=entries[number].at,
        )
        for threshold, account, number in sorted(told, key=lambda e: (-e[2], e[1]))
    ]


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
