"""A model of the ledger in exact fractions, which foretells each answer.

It knows basic composition, shares of flows and one population, and no code of dpflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.ledger.requests import Request
from dpflow.policy import Policy
from tests.ledger.histories import CASES, People

POPULATION = "population/p"
#: Budgets of datasets and shares that are `simple`.
LIMITS = {name: Fraction(text) for name, text in CASES["limits"].items()}


def epsilon(cost: Any, reported: int | None = None) -> Fraction:
    """Return what a cost takes of a budget of basic composition."""
    if hasattr(cost, "stops"):
        return Fraction(reported or max(cost.stops)) / 20
    return Fraction(cost.epsilon)


@dataclass
class Charge:
    """What the model knows of a charge.

    Attributes:
        accounts: How often each account is charged: a population for each member.
    """

    request: Request
    accounts: dict[str, int]
    held: Fraction
    state: str = "open"
    posted: Fraction = Fraction(0)
    added: Fraction = Fraction(0)
    settled_by: dict[str, Any] = field(default_factory=dict)


@dataclass
class Model:
    """Answers and sums as they must be; it is played like a ledger.

    Attributes:
        releases: Charge, state and value of each key.
        overdrawn: Accounts that a charge by hand raised above their budgets; they admit
            nothing more, whatever is returned later.
    """

    owners: People
    charges: dict[str, Charge] = field(default_factory=dict)
    releases: dict[str, tuple[str, str, str | None]] = field(default_factory=dict)
    by_hand: dict[str, Fraction] = field(default_factory=dict)
    evidence: set[str] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    overdrawn: set[str] = field(default_factory=set)

    def reserve(self, request: Request) -> Any:
        """Grant, replay, wait or refuse."""
        charge = self.charges.get(request.reservation)
        if charge is not None:
            return "Granted" if charge.state == "open" else "ReservationConflict"
        names = {policy.dataset for policy in request.policies}
        names |= {POPULATION} if request.populations else set()
        is_frozen = bool(names & self.frozen)
        key = request.release_key
        if key in self.releases and not is_frozen:
            owner, state, value = self.releases[key]
            if state == "settled" and value is not None and not request.fresh:
                return "Replayed", owner, value
            if state == "claimed" and self._lives(owner, request.owner):
                return "Busy", owner
        accounts = {f"{name}#1": 1 for name in names}
        if POPULATION in names:
            accounts[f"{POPULATION}#1"] = len(names & {"b", "q"})
        if "s" in names and request.flow == "f":
            accounts["s#1/flow/f"] = 1
        cost, sums = epsilon(request.cost), self.sums()
        self.opened |= names
        fits = all(
            sum(sums[name]) + cost * times <= LIMITS[name]
            for name, times in accounts.items()
        )
        if is_frozen or not fits or self.overdrawn & accounts.keys():
            return "BudgetRefused"
        made = Charge(request, accounts, cost)
        self.charges[request.reservation] = made
        if key is not None:
            self.releases[key] = request.reservation, "claimed", None
        return "Granted"

    def _lives(self, charge: str, asking: str) -> bool:
        owner = self.charges[charge].request.owner
        return owner == asking or self.owners.alive(owner)

    def end(self, kind: str, name: str, **fields: Any) -> Any:
        """Settle, void or forfeit."""
        charge, mine = self.charges[name], self.owners.mine()
        owner = charge.request.owner
        if kind == charge.state == "settle" and fields == charge.settled_by:
            return None
        if (
            charge.state != "open"
            or (kind == "void" and owner != mine)
            or (kind == "forfeit" and self.owners.alive(owner))
        ):
            return "ReservationConflict"
        charge.state, charge.posted, charge.settled_by = kind, charge.held, fields
        completed = fields.get("outcome") == "completed"
        reported = fields.get("reported")
        if kind == "void":
            charge.posted = Fraction(0)
        elif reported and completed and owner == mine and not charge.added:
            charge.posted = epsilon(charge.request.cost, reported)
        key = charge.request.release_key
        if key is not None and self.releases[key][0] == name:
            if completed:
                self.releases[key] = name, "settled", fields["value"]
            else:
                self.releases[key] = name, "free", None
        return None

    def amend(self, name: str, cost: Cost, **_: str) -> Any:
        """Charge what is more than was charged."""
        charge = self.charges[name]
        before = charge.held if charge.state == "open" else charge.posted
        more = epsilon(cost) - before - charge.added
        if more <= 0:
            return "ReservationConflict"
        charge.added += more
        self._mark_overdrawn()
        return "raised", more * max(charge.accounts.values())

    def charge_prior(
        self, policy: Policy, cost: Cost, *, evidence: str, **_: str
    ) -> Any:
        """Charge once for each evidence."""
        if evidence in self.evidence:
            return "ConfigurationError"
        account = f"{policy.dataset}#1"
        self.evidence.add(evidence)
        self.opened.add(policy.dataset)
        self.by_hand[account] = self.by_hand.get(account, Fraction(0)) + epsilon(cost)
        self._mark_overdrawn()
        return "raised", epsilon(cost)

    def _mark_overdrawn(self) -> None:
        sums = self.sums().items()
        self.overdrawn |= {name for name, use in sums if sum(use) > LIMITS[name]}

    def freeze(self, dataset: str, *, unfreeze: bool, **_: str) -> Any:
        """Freeze or open; say whether that is new."""
        if dataset not in self.opened:
            return "PolicyNotApplied"
        is_new = (dataset in self.frozen) == unfreeze
        (self.frozen.discard if unfreeze else self.frozen.add)(dataset)
        return is_new

    def withdraw(self, key: str) -> bool:
        """Delete a value; say whether there was one."""
        name, state, value = self.releases.get(key, ("", "", None))
        if state == "settled" and value is not None:
            self.releases[key] = name, "withdrawn", None
            return True
        return False

    def sums(self) -> dict[str, tuple[Fraction, Fraction]]:
        """Return settled and held on each account."""
        sums = {
            name: (self.by_hand.get(name, Fraction(0)), Fraction(0)) for name in LIMITS
        }
        for charge in self.charges.values():
            for name, times in charge.accounts.items():
                settled, held = sums[name]
                own = charge.held if charge.state == "open" else Fraction(0)
                more = charge.posted + charge.added
                sums[name] = settled + more * times, held + own * times
        return sums
