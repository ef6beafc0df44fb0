"""The ledger's answer when a gate does not admit a step, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpflow.accounting.rules.rule import COUNTS, Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.records import Request
from dpflow.rounding import (
    number_from_text,
    number_text,
    reading_up,
    short_down,
    short_up,
)

if TYPE_CHECKING:
    from dpflow.ledger.decision.gates import Gate

_JOURNALED = ("gate", "theorem", "asked", "left", "fits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a step may not run.

    Attributes:
        account: The first account that does not admit it.
        asked: What the step asks of that account.
        closed: The policy gives this flow no access to the dataset.
        halted: This account is the odometer that has halted the flow run before.
        run_halted: Some odometer has.
        frozen: Who froze the dataset and why, if it is frozen.
        ended: The preflight of the step's run was sealed: the run is over.
        factor: By how much the noise must grow for the step to fit, if it can.
    """

    request: Request
    account: Gate
    asked: Tally
    closed: bool
    halted: bool
    run_halted: bool
    frozen: Mapping[str, Any] | None
    factor: Fraction | None
    ended: bool = False


def journaled(error: BudgetRefused) -> dict[str, Any]:
    """Return what the journal keeps of a refusal."""
    return {
        "refusal": type(error).__name__,
        "message": error.message,
        **{name: error.details[name] for name in _JOURNALED},
    }


def refusal_error(refusal: Refusal, kind: type[BudgetRefused]) -> BudgetRefused:
    """Build the error that names asked, left and what would fit."""
    account, request = refusal.account, refusal.request
    fits = _fits(refusal)
    flow = f" of flow {request.flow!r}" if request.flow else ""
    # A freeze refuses by itself, whatever the gate would say, and so does the list.
    by = "" if account.state == "frozen" else f" by {_gate(account)}"
    if refusal.closed:
        by = f" by the list of flows in the policy of {_dataset(account)}"
    reason = _reason(refusal)
    message = (
        f"Step {request.step!r}{flow} was refused{by}. "
        f"{reason[0].upper()}{reason[1:]} {fits} Nothing was charged for it."
    )
    return kind(
        message,
        dataset=account.dataset,
        flow=request.flow,
        flow_run=request.flow_run,
        step=request.step,
        gate=account.kind,
        theorem=account.rule.theorem,
        asked=_asked(account, refusal.asked),
        left=_left(account),
        fits=fits,
        cost=request.cost.describe(),
    )


def refused_with_run(request: Request, run: Mapping[str, Any]) -> BudgetRefused:
    """Build the error of a step whose run holds nothing, for it did not fit.

    Args:
        request: The step, which would draw.
        run: What the journal says of the refusal of its run's preflight.
    """
    exhausted = run["refusal"] == BudgetExhausted.__name__
    kind = BudgetExhausted if exhausted else BudgetRefused
    return kind(
        f"Step {request.step!r} draws nothing: the reservation of its run was refused. "
        f"{run['message']}",
        dataset=run["dataset"],
        flow=request.flow,
        flow_run=request.flow_run,
        step=request.step,
        cost=request.cost.describe(),
        refused_with=run["covers"],
        **{name: run[name] for name in _JOURNALED},
    )


def _gate(account: Gate) -> str:
    theorem, dataset = account.rule.theorem, _dataset(account)
    if account.kind in ("dataset", "population"):
        return f"the {theorem} filter of {dataset}"
    if account.kind == "others":
        return f"the reserved shares of {dataset}"
    if account.kind == "partition":
        return f"the {theorem} filter of partition {account.name!r} of {dataset}"
    if account.partition:
        dataset = f"partition {account.partition!r} of {dataset}"
    if account.kind == "flow":
        return f"the share of flow {account.name!r} in {dataset}"
    return f"the {theorem} odometer of flow {account.name!r} on {dataset}"


def _dataset(account: Gate) -> str:
    if account.kind == "population":
        return f"population {account.dataset.partition('/')[2]!r}"
    return f"dataset {account.dataset!r}"


def _reason(refusal: Refusal) -> str:
    account, request = refusal.account, refusal.request
    if refusal.ended:
        return "its flow run has ended, and its reservation is sealed."
    if refusal.frozen:
        return f"{_dataset(account)} is {frozen_text(refusal.frozen)}."
    if refusal.closed:
        if request.flow is None:
            return "this step is in no flow."
        return f"{request.flow!r} is not one of them."
    if refusal.halted:
        return "it has halted this flow run already."
    if account.state != "open":
        return f"the account is {account.state}."
    if isinstance(account.rule, Odometer) and account.halt is not None:
        reading = account.rule.read(account.used)
        reached = account.rule.read(account.used + refusal.asked)
        return (
            f"its reading would rise from {reading_up(reading)} to "
            f"{reading_up(reached)}, above "
            f"halt_at_epsilon {short_down(account.halt)} "
            f"(at delta {short_up(account.rule.delta)})."
        )
    asked, left = account.rule.named(refusal.asked), _left(account)
    rest = ""
    if left is not None:
        shown = _shown(left, up=False, asked=asked)
        rest = f" Remaining: {shown} of {_budget(account)}."
    return f"it needs {_shown(asked, up=True)}.{rest}"


def _budget(account: Gate) -> str:
    if account.kind == "others":
        return "the budget beside reserved shares"
    if not isinstance(account.rule, Filter):
        return "the budget"
    rule = account.rule
    return f"(epsilon {short_up(rule.epsilon)}, delta {short_up(rule.delta)})"


def _left(account: Gate) -> dict[str, str] | None:
    if isinstance(account.rule, Odometer):
        return _odometer_left(account)
    left = account.left()
    return None if left is None else account.rule.named(left)


def _asked(account: Gate, amount: Tally) -> dict[str, str]:
    """Return what a step asked of an account; of a halt, how far its reading rises."""
    rule, before = account.rule, account.used
    if account.halt is not None and isinstance(rule, Odometer):
        reading, reached = rule.read(before), rule.read(before + amount)
        if reached != float("inf"):
            return {"epsilon": number_text(Fraction(reached) - Fraction(reading))}
    return rule.named(amount)


def _odometer_left(account: Gate) -> dict[str, str] | None:
    """Return the distance of the reading from the halt, rounded down."""
    if account.halt is None or not isinstance(account.rule, Odometer):
        return None
    reading = account.rule.read(account.used)
    if reading == float("inf"):
        return {"epsilon": "0"}
    distance = max(account.halt - Fraction(reading), Fraction(0))
    return {"epsilon": number_text(distance)}


def frozen_text(freeze: Mapping[str, Any]) -> str:
    """Say who froze a dataset and why."""
    return f"frozen by {freeze.get('who', 'unknown')}: {freeze.get('reason', '')!r}"


def _fits(refusal: Refusal) -> str:
    if refusal.ended:
        return "A late step draws nothing: run the flow again."
    if refusal.frozen is not None:
        return f"Nothing fits until `dpflow unfreeze {refusal.account.dataset}`."
    if refusal.closed:
        dataset = refusal.account.dataset
        return (
            "Run it in a flow that stands under `flows:` in the policy, or add this "
            f"one there: `dpflow policy diff {dataset}` says what that takes."
        )
    if refusal.run_halted:
        return "No further DP step of this flow run will be admitted."
    if refusal.account.state != "open":
        return f"Nothing fits while the account is {refusal.account.state}."
    left = refusal.account.left()
    if left is not None and _almost_fits(refusal.asked, left):
        named = refusal.account.rule.named
        share = _shown(named(left), up=False, asked=named(refusal.asked))
        return f"The excess is a rounding of the split: take {share}."
    if refusal.factor is None:
        gone = "the budget is used up"
        if refusal.account.kind == "others":
            gone = "the rest is reserved"
        elif not any(refusal.account.used.amounts):
            gone = "it needs more than the whole budget"
        return f"No amount of noise makes it fit: {gone}."
    noisier = refusal.request.cost.noisier(refusal.factor).rounded()
    return (
        f"With {short_up(refusal.factor)} times its noise it would still fit: "
        f"{noisier!r}. This would use all that remains."
    )


def _almost_fits(asked: Tally, left: Tally) -> bool:
    """Say whether all that is missing is a billionth of what is needed."""
    pairs = zip(asked.amounts, left.amounts, strict=True)
    return all((need - rest) * 10**9 <= need for need, rest in pairs)


def _shown(
    amounts: Mapping[str, str], *, up: bool, asked: Mapping[str, str] | None = None
) -> str:
    """Write amounts for people, without zeros except of what is asked."""
    short = short_up if up else short_down
    parts = [
        f"{name} {text if name in COUNTS else short(number_from_text(text))}"
        for name, text in amounts.items()
        if text != "0" or len(amounts) == 1 or (asked or {}).get(name, "0") != "0"
    ]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "nothing"
