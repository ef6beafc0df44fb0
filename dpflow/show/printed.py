"""What the commands print for programs: the shapes of `--json`, and their schemas.

Amounts of a budget are exact decimal texts, by the component of the theorem's tally,
such as `epsilon` or `mu_squared`. Fractions and readings are floats, rounded up; what
is undefined is null. Moments are ISO 8601 in UTC. Fields may be added, none goes away
or changes its meaning within a version.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from dpflow.ledger.views.unusual import Unusual

Amounts = Annotated[
    dict[str, str], Field(description="Exact decimal texts by component.")
]


class LedgerFacts(TypedDict):
    """Which ledger was read."""

    id: str
    place: str


class LedgerStatus(LedgerFacts):
    """Which ledger was read, and why it is taken to keep charges."""


class State(TypedDict):
    """Whether it runs."""

    word: Annotated[
        str,
        Field(description="running, not started, halted, frozen, paused or overdrawn"),
    ]
    by: Annotated[str | None, Field(description="Which gate or person stopped it.")]
    since: str | None


class SpentEpsilon(TypedDict):
    """The least budget that would have admitted what was charged so far."""

    account: Annotated[str | None, Field(description="The fullest part, if divided.")]
    epsilon: str | None
    of: Annotated[str, Field(description="The budget.")]
    delta: str


class Lost(TypedDict):
    """What a flow has lost at most."""

    epsilon: str
    delta: str
    by: Annotated[str | None, Field(description="Whose bound it is.")]


class FlowStatus(TypedDict):
    """One flow on one dataset."""

    flow: str | None
    state: State
    lost: Lost | None
    runs_left: int | None


class UnusualSteps(TypedDict):
    """How many steps did not go as most do."""

    own_noise: int
    failed: int
    forfeited: int
    older: Annotated[bool, Field(description="Older entries were not read.")]


class Term(TypedDict):
    """One term of a dataset."""

    number: int
    unit: str
    relation: str
    opened_with: Amounts
    budget: Amounts
    charged: bool
    lifetime: Amounts | None
    reason: str | None
    opened_at: str
    opened_by: str


class Frozen(TypedDict):
    """Who froze a dataset."""

    who: str | None
    reason: str | None
    at: str | None


class Reading(TypedDict):
    """What an odometer reads."""

    epsilon: Annotated[float | None, Field(description="null: undefined.")]
    delta: str
    halt_at_epsilon: str | None


class Account(TypedDict):
    """One account: what its theorem has added up."""

    id: Annotated[str | None, Field(description="null before the first charge.")]
    kind: Annotated[
        str, Field(description="dataset, partition, flow, lifetime, odometer ...")
    ]
    name: str
    theorem: str
    state: str
    epsilon: str | None
    delta: str
    budget: Amounts | None
    spent: Amounts
    reserved: Amounts
    forfeited: Amounts
    left: Amounts | None
    used_fraction: float | None
    odometer: Reading | None


class Outlook(TypedDict):
    """How many more runs a flow has."""

    dataset: str
    flow: str | None
    runs_left: Annotated[int | None, Field(description="null: there is no end.")]
    counts: Annotated[str, Field(description="What runs_left counts: runs or steps.")]
    limited_by: str | None
    per_run: str
    every: str | None
    every_from: str | None
    exhausted_on: str | None
    run: Annotated[str | None, Field(description="The run taken as the example.")]
    run_completed: bool
    older_runs_not_read: bool


class DatasetStatus(TypedDict):
    """One dataset in one term."""

    dataset: str
    state: State
    spent: list[SpentEpsilon]
    by_flow: list[FlowStatus]
    unusual_steps: UnusualSteps
    refused: Annotated[int, Field(description="Of the ledger's newest thousand.")]
    unit: str | None
    relation: str | None
    guarantee: Annotated[str | None, Field(description="In words.")]
    shares: Annotated[Amounts | None, Field(description="Their sum.")]
    planned_noise: dict[str, Any] | None
    term: int | None
    terms: list[Term]
    frozen: Frozen | None
    parts: Annotated[int, Field(description="Charged parts of a divided dataset.")]
    accounts: list[Account]
    outlooks: list[Outlook]


class Status(TypedDict):
    """`dpflow status --json`."""

    ledger: LedgerStatus
    datasets: list[DatasetStatus]
    flows: Annotated[
        list[Outlook],
        Field(description="Of flows that charge several datasets: what ends them."),
    ]
    warnings: list[str]


class Refusal(TypedDict):
    """Why a step was refused."""

    refusal: str | None
    gate: str | None
    asked: Amounts | None
    left: Amounts | None
    fits: str | None
    message: str | None


class Entry(TypedDict):
    """One entry of the journal, as it moved one account."""

    at: str
    entry: Annotated[str, Field(description="reserve, settle, refuse, open ...")]
    account: str
    dataset: str
    sequence: int
    step: str | None
    flow: str | None
    flow_run: str | None
    cost: dict[str, Any] | None
    amount: Amounts
    settled_after: Amounts
    held_after: Amounts
    left_after: Amounts | None
    release_key: str | None
    noise: str | None
    outcome: str | None
    error_type: str | None
    refusal: Refusal | None
    reservation: str | None
    reason: str | None
    who: str | None
    code: Any
    writer: str


class Decision(Entry):
    """What somebody decided: an entry with what it comes to."""

    decision: str
    what: str


class History(TypedDict):
    """`dpflow history --json`; with `--decisions`, entries are decisions."""

    ledger: LedgerFacts
    entries: list[Decision | Entry]
    more: bool


class Spending(TypedDict):
    """What one group of charges used of an account."""

    account: str
    group: list[str]
    charges: int
    amount: Amounts
    used_fraction: float | None
    last: str
    weeks: list[str]


class RefusedStep(TypedDict):
    """Refusals that say the same."""

    at: str
    first: str
    times: int
    account: str
    run: str | None
    refusal: str | None
    step: str | None
    flow: str | None
    gate: str | None
    theorem: str | None
    asked: Amounts | None
    left: Amounts | None
    fits: str | None
    message: str | None


class Why(TypedDict):
    """`dpflow why --json`."""

    ledger: LedgerFacts
    dataset: str
    term: int | None
    by: list[str]
    spending: list[Spending]
    unusual: list[Unusual]
    refused: int
    refused_by: Annotated[dict[str, int], Field(description="By account.")]
    refusals: list[RefusedStep]


class WorkloadStep(TypedDict):
    """A step of one run."""

    cost: str
    times: int
    outcome: Any


class Point(TypedDict):
    """What is used after the run of a day."""

    date: str
    used_fraction: float


class Noise(TypedDict):
    """What so many times the noise would change."""

    factor: float
    runs_left: int | None
    exhausted_on: str | None
    half_widths: list[float | None]
    problem: str | None


class EnoughNoise(TypedDict):
    """The noise with which the runs that were asked for fit."""

    runs: int
    factor: float
    workload: list[WorkloadStep]


class Fit(TypedDict):
    """How many such runs a theorem admits with the whole budget."""

    theorem: str
    priced: bool
    runs: int | None
    problem: str | None


class Forecast(TypedDict):
    """`dpflow forecast --json`."""

    dataset: str
    starts_from: str
    workload: list[WorkloadStep]
    outlook: Outlook
    points: list[Point]
    noise: list[Noise]
    enough_noise: EnoughNoise | None
    theorems: Annotated[list[Fit], Field(description="Empty without --theorems.")]
    planned_noise: dict[str, Any]


#: By command.
SHAPES: dict[str, Any] = {
    "status": Status,
    "history": History,
    "why": Why,
    "forecast": Forecast,
}


def printed_schema(command: str) -> dict[str, Any]:
    """Return the JSON schema of what a command prints for programs.

    Args:
        command: status, history, why or forecast.
    """
    return TypeAdapter(SHAPES[command]).json_schema()
