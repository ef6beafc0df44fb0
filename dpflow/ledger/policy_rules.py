"""What a policy pins and the rules that it makes, worked out once per policy.

A policy never changes, and its derived numbers cost more than all else in a decision.
"""

from __future__ import annotations

import threading
import weakref
from fractions import Fraction
from functools import cached_property

from dpflow.accounting.theorem import Filter, Odometer
from dpflow.ledger.records import canonical
from dpflow.policy import Policy


class PolicyRules:
    """The rules of one policy. Nobody may change them; they are shared.

    Args:
        policy: The policy; it is only held weakly.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = weakref.ref(policy)
        self._flows: dict[
            str, tuple[Filter | None, Odometer | None, Fraction | None]
        ] = {}

    @cached_property
    def pinned_text(self) -> str:
        """The fields on which the guarantee rests, in canonical form."""
        return canonical(self._here().pinned())

    @cached_property
    def dataset(self) -> Filter:
        """The filter of the whole dataset."""
        return self._here().dataset_filter()

    def flow(self, flow: str) -> tuple[Filter | None, Odometer | None, Fraction | None]:
        """Return a flow's own filter, its odometer and the reading that halts it."""
        found = self._flows.get(flow)
        if found is None:
            policy = self._here()
            found = (
                policy.flow_filter(flow),
                policy.flow_odometer(flow),
                policy.halt_at(flow),
            )
            if len(self._flows) < _MOST_FLOWS:
                self._flows[flow] = found
        return found

    def _here(self) -> Policy:
        policy = self._policy()
        assert policy is not None
        return policy


_MOST_FLOWS = 1000
_lock = threading.Lock()
_known: dict[int, PolicyRules] = {}


def rules_of(policy: Policy) -> PolicyRules:
    """Return the rules of a policy, made at the first call."""
    found = _known.get(id(policy))
    if found is None:
        found = PolicyRules(policy)
        with _lock:
            _known[id(policy)] = found
        # The number may be another policy's once this one is gone.
        weakref.finalize(policy, _known.pop, id(policy), None).atexit = False
    return found
