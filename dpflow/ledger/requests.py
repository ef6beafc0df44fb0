"""Requests to the ledger and its answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import ConfigurationError
from dpflow.ledger.account_ids import Term
from dpflow.ledger.canonical import by_identity, canonical
from dpflow.noise.shape import Shape
from dpflow.policy import Policy

#: Charges of a store of people without a record; the name fits no file.
UNKNOWN = "unknown"

_ID = re.compile(r"[A-Za-z0-9._:/@-]{1,200}")
_KEY = re.compile(r"[0-9a-f]{64}")
# NUL and lone surrogates are kept differently by each database, or not at all.
_NAME = re.compile(r"[^\0\ud800-\udfff]{1,400}")
#: Facts of a request that the ledger itself writes.
_OWN_FACTS = {
    *("account", "accounts", "alerts", "arguments", "cost", "datasets", "halts", "key"),
    *("key_text", "owner", "partitions", "policy", "refusal", "runs", "units"),
}
TEXT = re.compile(r"[^\0\ud800-\udfff]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request of a step to run.

    Attributes:
        reservation: A fresh uuid of this execution of the body.
        owner: The process of the step (`dpflow.ledger.tables.owners`).
        policies: One per dataset that the step reads; all admit it or none.
        populations: One per population that any of these datasets belongs to.
        cost: The step's worst case.
        step: Name of the step.
        flow: The flow whose share and odometer are charged, if any.
        flow_run: The run of that flow; an odometer's halt holds for all of it.
        enclosing_runs: All flow runs around the step, to find their refusals by.
        partitions: Names of the partitions that the step reads, of the datasets that
            are divided.
        release_key: Keyed digest under which the output is stored, if it is.
        key_text: The release key for people.
        arguments: Keyed digest of each argument of a step that names its release key;
            None of one that it ignores; under "" that of the step's function.
        makers: The function by that digest, and those that it was before it was moved.
        fresh: Whether to draw anew, at a new charge, although there is a release.
        on_change: "refuse" if a release of another cost is an error.
        body: Further facts for the journal: task run, attempt, version. Never data.
        shape: What the step declares of several numbers.

    Raises:
        ConfigurationError: If a dataset or partition is named twice, or if a database
            would keep a name differently from how it is hashed.
    """

    reservation: str
    owner: str
    policies: tuple[Policy, ...]
    cost: Cost
    step: str
    populations: tuple[Policy, ...] = ()
    flow: str | None = None
    flow_run: str | None = None
    enclosing_runs: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    release_key: str | None = None
    key_text: str = ""
    arguments: Mapping[str, str | None] | None = None
    makers: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    on_change: str = "replay"
    body: Mapping[str, Any] = field(default_factory=dict)
    shape: Shape = field(default_factory=Shape, compare=False)

    def __post_init__(self) -> None:
        if not self.policies:
            msg = f"step {self.step!r:.60} reads no dataset. It did not run."
            raise ConfigurationError(msg)
        for names in (self.datasets, self.partitions):
            if len({*names}) != len(names):
                msg = f"a step names each dataset and partition once, got {names!r:.80}"
                raise ConfigurationError(msg)
        if foreign := _OWN_FACTS & self.body.keys():
            msg = (
                f"step {self.step!r:.60} says {min(foreign)!r} in its facts for the "
                "journal, which the ledger itself writes. Nothing was charged. Omit it."
            )
            raise ConfigurationError(msg)
        runs = (*self.enclosing_runs, self.flow_run)
        for pattern, texts in (
            (_ID, (self.reservation, self.owner, *self.partitions)),
            (_NAME, (self.step, self.flow, *runs)),
            (TEXT, (self.key_text,)),
            (_KEY, (self.release_key,)),
        ):
            for text in texts:
                if text is not None and not pattern.fullmatch(text):
                    msg = (
                        f"step {self.step!r:.60} has the name {text!r:.60}, which must "
                        f"be text that matches {pattern.pattern}. It did not run."
                    )
                    raise ConfigurationError(msg)

    @property
    def datasets(self) -> list[str]:
        """The datasets that the step reads."""
        return [policy.dataset for policy in self.policies]

    @property
    def locked(self) -> list[str]:
        """Names of its datasets and populations."""
        return sorted(
            {*self.datasets, *(policy.dataset for policy in self.populations)}
        )

    @property
    def runs(self) -> list[str]:
        """All flow runs around the step, its own the last."""
        return [*dict.fromkeys(filter(None, (*self.enclosing_runs, self.flow_run)))]


@by_identity
def describe_cost(cost: Cost) -> Mapping[str, Any]:
    """Return a cost's description, computed once; do not change it."""
    return cost.describe()


@by_identity
def cost_text(cost: Cost) -> str:
    """Return a cost's description in canonical form."""
    return canonical(describe_cost(cost))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How a ledger decides every command.

    Attributes:
        applies_policies: Whether the first step applies its policy. If not, an operator
            has to run `dpflow policy apply`.
        provenance: User and code version (`dpflow.ledger.provenance`).
    """

    applies_policies: bool = True
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alert:
    """A threshold of a policy that the settled amounts of an account have crossed.

    Attributes:
        gate: The account's kind: "dataset", "partition", "population", "flow" for a
            share, or "odometer".
        name: Of the flow or partition, or "".
        used_fraction: As of `AccountView`, of what is settled.
    """

    dataset: str
    account: str
    gate: str
    name: str
    threshold: str
    used_fraction: float


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of a charge.

    Attributes:
        digest: Of the stored value; None without one.
        alerts: Thresholds that were crossed with it; empty for a command that was sent
            again.
    """

    digest: str | None
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer that lets a step run: its worst case is held on every account.

    Attributes:
        opened: Terms of which it is the first charge; empty for an id sent again, too.
    """

    reservation: str
    accounts: tuple[str, ...]
    opened: tuple[Term, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A settled release under the same key: the answer, at no cost.

    Attributes:
        made_at: Its cost, if the step declares another one now.
    """

    reservation: str
    value: str
    digest: str
    made_at: str | None = None


@dataclass(frozen=True, slots=True)
class Busy:
    """Another live execution is making this release: wait and ask again."""

    reservation: str
    owner: str


Answer = Granted | Replayed | Busy
