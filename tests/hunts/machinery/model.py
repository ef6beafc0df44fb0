"""The promises of the ledger as a model of at most fifty lines, integers only."""

from __future__ import annotations

from dataclasses import dataclass, field

LIMIT = 1000


@dataclass
class Charge:
    """What the model knows of a charge."""

    owner: str
    cost: int
    key: str | None
    state: str = "open"


@dataclass
class Model:
    """Answers and states as they must be."""

    charges: dict[str, Charge] = field(default_factory=dict)
    claims: dict[str, str] = field(default_factory=dict)
    releases: dict[str, tuple[int, str]] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)

    def total(self, *states: str) -> int:
        """Add up the charges in some states."""
        return sum(c.cost for c in self.charges.values() if c.state in states)

    def left(self) -> int:
        """Return what is neither spent nor held."""
        return LIMIT - self.total("open", "settled", "forfeited")

    def reserve(self, name: str, owner: str, cost: int, key: str | None) -> str:
        """Decide."""
        if name in self.charges:
            same = self.charges[name] == Charge(owner, cost, key)
            return "Granted" if same else "ReservationConflict"
        if key in self.releases:
            return "Replayed"
        holder = self.charges[self.claims[key]].owner if key in self.claims else None
        # Who asks lives.
        if holder is not None and (holder == owner or holder not in self.dead):
            return "Busy"
        if cost > self.left():
            return "refused"
        self.charges[name] = Charge(owner, cost, key)
        if key is not None:
            self.claims[key] = name
        return "Granted"

    def end(self, name: str, state: str, by: str, value: str | None = None) -> str:
        """Settle, void or forfeit."""
        charge = self.charges.get(name)
        if charge is not None and charge.state == state == "settled":
            return "none"
        if charge is None or charge.state != "open":
            return "ReservationConflict"
        dead = charge.owner in self.dead
        if (state, by == charge.owner) == ("void", False) or (
            state == "forfeited" and not dead
        ):
            return "ReservationConflict"
        charge.state = state
        if state != "forfeited" and self.claims.get(charge.key or "") == name:
            del self.claims[charge.key or ""]
            if value is not None:
                self.releases[charge.key or ""] = charge.cost, value
        return "none"
