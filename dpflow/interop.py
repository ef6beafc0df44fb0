"""Adapters: costs of other libraries, and types of released values."""

from dpflow.accounting.costs.adapters import from_dp_event, from_opendp
from dpflow.ledger.codec.kinds import releasable

__all__ = ["from_dp_event", "from_opendp", "releasable"]
