"""Each dataset and flow in one word and one epsilon: does it run, and its use.

What the words mean is said by `state_of`, once, for everything that shows them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from dpflow.accounting.rules.rule import Filter
from dpflow.forecast import Outlook
from dpflow.forecast.theorems import epsilon_used
from dpflow.ledger import split_account, views
from dpflow.ledger.views.accounts import AccountView, Standing
from dpflow.ledger.views.entries import account_title, kind_title, people_lines
from dpflow.ledger.views.reading import Source
from dpflow.ledger.views.releases import RefusalView
from dpflow.policy.population import population_of
from dpflow.rounding import number_from_text, short_up

RUNNING, NO_RUN, FROZEN = "running", "no whole run fits", "frozen"
OVERDRAWN, NOT_STARTED = "overdrawn", "not started"
#: States in which a budget or an officer stops steps.
STOPPED = (NO_RUN, FROZEN, OVERDRAWN)
_WHOLE = "budget of dataset "
_BUDGETS = ("dataset", "partition", "population")
_OF_FLOW = ("flow", "odometer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Whether a dataset or flow runs.

    Attributes:
        word: "running", "no whole run fits", "frozen", "overdrawn" or "not started".
        by: The gate that admits no whole run, in words.
        since: When it refused last; a label.
    """

    word: str
    by: str = ""
    since: str = ""

    @property
    def text(self) -> str:
        """The word, and the gate that admits no whole run."""
        return f"{self.word} the {self.by}" if self.by else self.word

    def short(self, flow: str | None) -> str:
        """Return the same next to the name of a flow, which is not said again."""
        own = f" of {flow}"
        if self.by and flow is not None and self.by.endswith(own):
            return f"{self.word} its {self.by.removesuffix(own)}"
        if self.by.startswith(_WHOLE):
            return f"{self.word} the dataset's budget"
        return self.text

    @property
    def stopped(self) -> bool:
        """Whether a budget or an officer stops its steps."""
        return self.word in STOPPED


def state_of(
    gates: Collection[str],
    *,
    charged: bool,
    halt: RefusalView | None = None,
    outlook: Outlook | None = None,
) -> RunState:
    """Return the state of a flow on a dataset; the first that is true.

    frozen: an officer or anyone froze a gate of it. overdrawn: more was charged by
    hand than a gate of it admits. no whole run fits: its newest request that a budget
    ended was followed by no grant in this term, or no further run fits. not started:
    nothing was charged in this term. running: all else.

    Args:
        gates: States of the accounts that must admit its steps.
        charged: Whether a step of it was charged in the newest term.
        halt: The refusal of the exhausted budget.
        outlook: How many more runs fit, where that can be computed.
    """
    for word in (FROZEN, OVERDRAWN):
        if word in gates:
            return RunState(word=word)
    if halt is not None:
        return RunState(word=NO_RUN, by=_gate(halt), since=halt.at)
    if outlook is not None and outlook.runs_left == 0:
        by = (outlook.limited_by or "budget").rpartition(", which ")
        return RunState(word=NO_RUN, by=_own(by[0] or by[2]))
    return RunState(word=RUNNING if charged else NOT_STARTED)


def _gate(refusal: RefusalView) -> str:
    """Name the gate that refused."""
    kind, part = str(refusal.body.get("gate")), split_account(refusal.account)[4]
    name = part if kind == "partition" else str(refusal.body.get("flow"))
    return _own(kind_title(kind, refusal.dataset, name, part))


def _own(title: str) -> str:
    """Name what people call the budget of a dataset or a part."""
    is_budget = title.startswith(("dataset ", "partition ", "population "))
    return f"budget of {title}" if is_budget else title


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """What was charged to one budget, as an epsilon.

    Attributes:
        where: "" for a whole dataset, else the part or population.
        used: The least epsilon, at the same delta, of a budget that would have
            admitted this usage (`theorems.epsilon_used`); None without such a budget.
        epsilon: Of the budget.
        fraction: The share of the budget in the currency in which charges add up.
    """

    account: str
    where: str
    used: Fraction | None
    epsilon: str
    delta: str
    fraction: float | None

    @property
    def text(self) -> str:
        """What was used and of how much, rounded up."""
        of, delta = (short_up(number_from_text(n)) for n in (self.epsilon, self.delta))
        used = "more than any budget" if self.used is None else short_up(self.used, 3)
        return f"epsilon {used} of {of} at delta {delta}{self.scope}"

    @property
    def scope(self) -> str:
        """Where it was used, after a verb; "" for a whole dataset."""
        return f" in {self.where}" if self.where else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOverview:
    """One flow on one dataset.

    Attributes:
        planned: How many runs the policy plans, if it does.
        outlook: How many more runs it has, where that can be computed.
    """

    flow: str | None
    state: RunState
    planned: int | None = None
    outlook: Outlook | None = field(repr=False)

    @property
    def text(self) -> str:
        """State, remaining runs and day of the first refusal, in words."""
        state = self.state.short(self.flow)
        if self.outlook is None or self.state.stopped:
            return state
        return f"{state}, {self.outlook.remaining(self.planned)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """One dataset in its newest term: does it run, and how much is used.

    Attributes:
        spent: For the whole, if it has a budget, and for the fullest part that was
            read.
    """

    state: RunState
    spent: tuple[BudgetUse, ...]
    flows: tuple[FlowOverview, ...]


def overview(source: Source, standing: Standing, ahead: Iterable[Outlook]) -> Overview:
    """Read whether a dataset and its flows run, and how much is used.

    Args:
        source: The ledger to read.
        standing: The dataset, or a population.
        ahead: The outlooks of the dataset's flows.
    """
    dataset, accounts, pinned = standing.dataset, standing.accounts, standing.pinned
    undivided = [view for view in accounts if view.kind in _BUDGETS]
    population = population_of(pinned)
    above = [] if population is None else views.accounts(source, population)
    budgets = [*undivided, *above]
    common = {view.state for view in budgets if view.kind != "partition"}
    halts = views.halts(source, dataset)
    outlooks = {outlook.flow: outlook for outlook in ahead}
    shares = [view for view in accounts if view.kind in _OF_FLOW]
    any_charged = any(view.charged for view in undivided)
    older = any(outlook.older for outlook in outlooks.values())
    flows = []
    names = {*pinned["flows"], *(view.name for view in shares), *outlooks, *halts}
    # Steps outside of any flow come last.
    for flow in sorted(names, key=lambda name: (name is None, name or "")):
        own, outlook = [v for v in shares if v.name == flow], outlooks.get(flow)
        has_run = outlook is not None and (outlook.run is not None or outlook.single)
        # Without a share, only runs show that it charged, unless those are too old.
        unseen = not own and older and any_charged
        charged = has_run or any(view.charged for view in own) or unseen
        plan = pinned["flows"].get(flow, {}).get("plan", {})
        state = state_of(
            common | {view.state for view in own},
            charged=charged,
            halt=halts.get(flow),
            outlook=outlook,
        )
        row = {"flow": flow, "state": state, "outlook": outlook}
        flows.append(FlowOverview(**row, planned=plan.get("runs")))
    state = state_of({view.state for view in budgets}, charged=any_charged)
    # A dataset is stopped if all of its flows are: as the first of them.
    if flows and not state.stopped and all(flow.state.stopped for flow in flows):
        state = flows[0].state
    spent = tuple(describe_use(view) for view in _budgets(accounts))
    return Overview(state=state, spent=spent, flows=tuple(flows))


def _budgets(accounts: Iterable[AccountView]) -> list[AccountView]:
    """Return the budget of the whole, if there is one, and that of the fullest part."""
    own = [view for view in accounts if view.kind in ("dataset", "population")]
    parts = [view for view in accounts if view.kind == "partition"]
    fullest = sorted(parts, key=lambda view: -(view.used_fraction or 0.0))
    return own + fullest[:1]


def describe_use(view: AccountView) -> BudgetUse:
    """Return the use of an account's budget."""
    rule = view.gate.rule
    used: Fraction | None = Fraction(0)
    if view.charged and isinstance(rule, Filter):
        used = epsilon_used(rule, view.gate.total)
    return BudgetUse(
        account=view.id,
        where="" if view.kind != "partition" else account_title(view),
        used=used,
        epsilon=view.epsilon or "0",
        delta=view.delta,
        # People take the whole budget, of which each pays their own part.
        fraction=None if people_lines([view]) else view.used_fraction,
    )
