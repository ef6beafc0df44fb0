"""Grants: a part of one ledger's budget that another ledger may spend.

The ledger that governs a data source charges the part in full, once and for ever, and
writes a grant for one other ledger. Whatever that one does within the grant has been
paid for: all its releases together are one (epsilon, delta)-DP interactive mechanism,
and every privacy filter for non-interactive mechanisms also admits such, however their
queries interleave (Haney, Shoemate, Tian, Vadhan, Vyrros, Xu, Zhang: Concurrent
Composition for Interactive Differential Privacy with Adaptive Privacy-Loss Parameters,
CCS 2023).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpflow.exceptions import ConfigurationError
from dpflow.ledger.ed25519 import Sign, from_hex
from dpflow.ledger.entry import canonical
from dpflow.ledger.keys import ledger_key
from dpflow.ledger.records import digest
from dpflow.policy import Policy
from dpflow.rounding import number_from_text

_KIND = "dpflow grant 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one ledger lets another one spend.

    Attributes:
        source: The data source.
        unit: Privacy unit of the guarantee.
        relation: Its neighbouring relation.
        epsilon: The most that all terms of the other ledger together may lose.
        delta: The same.
        giver: Id of the ledger that was charged.
        taker: Id of the ledger that may spend it.
        environment: The only one that the taker may serve; None for any.
        because: Why it was given.
        at: When, a label.
    """

    source: str
    unit: str
    relation: str
    epsilon: str
    delta: str
    giver: str
    taker: str
    environment: str | None
    because: str
    at: str

    @property
    def digest(self) -> str:
        """The sha256 over all that it says."""
        return digest(canonical([_KIND, asdict(self)]))

    def to_text(self, sign: Sign | None) -> str:
        """Write it, signed if there is something to sign it with."""
        told = self.digest
        signature = None if sign is None else sign(_signed(told)).hex()
        facts = {"kind": _KIND, **asdict(self), "digest": told, "signature": signature}
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"

    def covers(self, lifetime: Mapping[str, str]) -> bool:
        """Say whether a lifetime is within it; equality is."""
        mine = {"epsilon": self.epsilon, "delta": self.delta}
        return all(
            number_from_text(lifetime[name]) <= number_from_text(limit)
            for name, limit in mine.items()
        )


def grant_from_text(text: str) -> Grant:
    """Read a grant.

    Raises:
        ConfigurationError: If it is none, was changed, or is not signed with the key
            that this process has, or has the public half of.
    """
    try:
        facts = json.loads(text)
        told, signature = facts.pop("digest"), facts.pop("signature")
        if facts.pop("kind") != _KIND:
            raise ValueError
        grant = grant_from_facts(facts)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        msg = "this is no grant: `dpflow ledger carve` writes one"
        raise ConfigurationError(msg) from error
    if told != grant.digest:
        msg = (
            "the grant was changed after it was written: its digest does not fit. Ask "
            "for the file that `dpflow ledger carve` wrote."
        )
        raise ConfigurationError(msg)
    key = ledger_key()
    if key is not None and not key.verifies(_signed(told), from_hex(signature)):
        msg = (
            "the grant is not signed with the key that DPFLOW_LEDGER_KEY names: carve "
            "it where that names the private key"
        )
        raise ConfigurationError(msg)
    return grant


def grant_from_facts(facts: Mapping[str, Any]) -> Grant:
    """Read what a journal keeps of a grant.

    Raises:
        TypeError: If a field is missing, unknown or no text.
    """
    grant = Grant(**facts)
    for name, value in asdict(grant).items():
        if not isinstance(value, str) and not (name == "environment" and value is None):
            msg = f"{name} of a grant must be a text, got {value!r}"
            raise TypeError(msg)
    return grant


def check_covers(
    grant: Grant, policy: Policy, ledger: str, environment: str | None
) -> None:
    """Refuse a policy that promises more, or something else, than a grant gives.

    Args:
        grant: What was given.
        policy: What this ledger would promise; its lifetime bounds all its terms.
        ledger: This ledger.
        environment: What it serves.

    Raises:
        ConfigurationError: With what differs.
    """
    if grant.taker != ledger:
        what = f"is for ledger {grant.taker}, and this is ledger {ledger}"
    elif grant.environment not in (None, environment):
        what = f"is for the environment {grant.environment!r}, not {environment!r}"
    elif (grant.source, grant.unit, grant.relation) != (
        policy.source,
        policy.unit,
        policy.relation,
    ):
        what = (
            f"is for {grant.unit} ({grant.relation}) of source {grant.source!r}, the "
            f"policy for {policy.unit} ({policy.relation}) of {policy.source!r}"
        )
    elif policy.lifetime is None:
        what = "needs a policy with a `lifetime`, which bounds all its terms together"
    elif not grant.covers(policy.declared()["lifetime"]):
        limit = policy.declared()["lifetime"]
        what = (
            f"gives epsilon {grant.epsilon} and delta {grant.delta}, and the policy's "
            f"lifetime is epsilon {limit['epsilon']} and delta {limit['delta']}: lower "
            "it, or carve more"
        )
    else:
        return
    msg = f"the grant for dataset {policy.dataset!r} {what}"
    raise ConfigurationError(msg)


def _signed(told: str) -> bytes:
    """Return what a grant's signature is over."""
    return f"grant {told}".encode()
