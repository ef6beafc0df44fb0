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
from dpflow.ledger.rows import split
from dpflow.rounding import (
    number_from_text,
    number_text,
    reading_up,
    short_down,
    short_up,
)

if TYPE_CHECKING:
    from dpflow.ledger.decision.gates import Gate

#: Amounts in a theorem's own currency.
Named = Mapping[str, str]
_JOURNALED = ("gate", "theorem", "asked", "left", "fits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a step may not run.

    Attributes:
        account: The first account that does not admit it.
        asked: What the step asks of that account.
        cause: "frozen"; "closed" if the policy gives the flow no access; "ended" if the
            reservation of the step's run was sealed; "halted" if this account has
            halted the flow run; "overdrawn"; else empty: the amount does not fit.
        frozen: Who froze the dataset and why.
        run_halted: Whether some odometer has halted the flow run.
        factor: By how much the noise must grow for the step to fit, if it can.
    """

    request: Request
    account: Gate
    asked: Tally
    cause: str = ""
    frozen: Mapping[str, Any] | None = None
    run_halted: bool = False
    factor: Fraction | None = None


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
    asked, left = _amounts(account, refusal.asked)
    by, reason, fits = _words(refusal, asked, left)
    flow = f" of flow {request.flow!r}" if request.flow else ""
    message = (
        f"Step {request.step!r}{flow} was refused{by}. "
        f"{reason[0].upper()}{reason[1:]} {fits} Nothing was charged for it."
    )
    facts = (account.kind, account.rule.theorem, asked, left, fits)
    details = dict(zip(_JOURNALED, facts, strict=True))
    return kind(message, **_step(request, account.dataset), **details)


def refused_with_run(request: Request, run: Mapping[str, Any]) -> BudgetRefused:
    """Build the error of a step whose run's reservation was refused.

    Args:
        request: The step, which would draw.
        run: What the journal says of the refusal of its run's reservation.
    """
    exhausted = run["refusal"] == BudgetExhausted.__name__
    kind = BudgetExhausted if exhausted else BudgetRefused
    message = (
        f"Step {request.step!r} draws nothing: the reservation of its run was refused. "
        f"{run['message']}"
    )
    details = {name: run[name] for name in _JOURNALED}
    about = _step(request, split(str(run["account"]))[0])
    return kind(message, **about, **details, refused_with=run["covers"])


def _step(request: Request, dataset: str) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "flow": request.flow,
        "flow_run": request.flow_run,
        "step": request.step,
        "cost": request.cost.describe(),
    }


def frozen_text(freeze: Mapping[str, Any]) -> str:
    """Say who froze a dataset and why."""
    return f"frozen by {freeze.get('who', 'unknown')}: {freeze.get('reason', '')!r}"


# Words


def _words(refusal: Refusal, asked: Named, left: Named | None) -> tuple[str, str, str]:
    """Return the gate that refused, the reason, and what would fit."""
    account, request, cause = refusal.account, refusal.request, refusal.cause
    gate, dataset = f" by {_gate(account)}", _dataset(account)
    if cause == "frozen":
        reason = f"{dataset} is {frozen_text(refusal.frozen or {})}."
        return "", reason, f"Nothing fits until `dpflow unfreeze {account.dataset}`."
    if cause == "closed":
        reason = "this step is in no flow."
        if request.flow is not None:
            reason = f"{request.flow!r} is not one of them."
        fits = (
            "Run it in a flow that stands under `flows:` in the policy, or add this "
            f"one there: `dpflow policy diff {account.dataset}` says what that takes."
        )
        return f" by the list of flows in the policy of {dataset}", reason, fits
    if cause == "ended":
        reason = "its flow run has ended, and its reservation is sealed."
        return gate, reason, "A late step draws nothing: run the flow again."
    if cause == "overdrawn":
        reason = "the account is overdrawn."
        return gate, reason, "Nothing fits while the account is overdrawn."
    fits = "No further DP step of this flow run will be admitted."
    if cause == "halted":
        return gate, "it has halted this flow run already.", fits
    if not refusal.run_halted:
        fits = _fitting(refusal, asked, left)
    return gate, _shortage(refusal, asked, left), fits


def _gate(account: Gate) -> str:
    theorem, name, dataset = account.rule.theorem, account.name, _dataset(account)
    if account.partition:
        dataset = f"partition {account.partition!r} of {dataset}"
    texts = {
        "others": f"the reserved shares of {dataset}",
        "flow": f"the share of flow {name!r} in {dataset}",
        "odometer": f"the {theorem} odometer of flow {name!r} on {dataset}",
    }
    return texts.get(account.kind, f"the {theorem} filter of {dataset}")


def _dataset(account: Gate) -> str:
    if account.kind == "population":
        return f"population {account.dataset.partition('/')[2]!r}"
    return f"dataset {account.dataset!r}"


def _shortage(refusal: Refusal, asked: Named, left: Named | None) -> str:
    """Say what a step needs of its account, and what remains there."""
    account, rule = refusal.account, refusal.account.rule
    if isinstance(rule, Odometer) and account.halt is not None:
        reading = rule.read(account.used)
        reached = rule.read(account.used + refusal.asked)
        return (
            f"its reading would rise from {reading_up(reading)} to "
            f"{reading_up(reached)}, above "
            f"halt_at_epsilon {short_down(account.halt)} "
            f"(at delta {short_up(rule.delta)})."
        )
    needs = f"it needs {_shown(asked, up=True)}."
    if left is None:
        return needs
    budget = "the budget beside reserved shares"
    if account.kind != "others" and isinstance(rule, Filter):
        budget = f"(epsilon {short_up(rule.epsilon)}, delta {short_up(rule.delta)})"
    return f"{needs} Remaining: {_shown(left, up=False, asked=asked)} of {budget}."


def _fitting(refusal: Refusal, asked: Named, left: Named | None) -> str:
    """Say at which noise a step would fit."""
    account, rest = refusal.account, refusal.account.left()
    if rest is not None and all(
        # All that is missing is a billionth of what is needed.
        (need - free) * 10**9 <= need
        for need, free in zip(refusal.asked.amounts, rest.amounts, strict=True)
    ):
        share = _shown(left or {}, up=False, asked=asked)
        return f"The excess is a rounding of the split: take {share}."
    if refusal.factor is None:
        why = "the budget is used up"
        if account.kind == "others":
            why = "the rest is reserved"
        elif not any(account.used.amounts):
            why = "it needs more than the whole budget"
        return f"No amount of noise makes it fit: {why}."
    noisier = refusal.request.cost.noisier(refusal.factor).rounded()
    return (
        f"With {short_up(refusal.factor)} times its noise it would still fit: "
        f"{noisier!r}. This would use all that remains."
    )


def _amounts(account: Gate, asked: Tally) -> tuple[Named, Named | None]:
    """Return what a step asks of an account, and what remains there, if known.

    Of a halt: how far the reading rises, and its distance from the halt, rounded down.
    """
    rule, left = account.rule, account.left()
    if not isinstance(rule, Odometer) or account.halt is None:
        return rule.named(asked), None if left is None else rule.named(left)
    reading, reached = rule.read(account.used), rule.read(account.used + asked)
    if reading == float("inf"):
        return rule.named(asked), {"epsilon": "0"}
    rest = {"epsilon": number_text(max(account.halt - Fraction(reading), Fraction(0)))}
    if reached == float("inf"):
        return rule.named(asked), rest
    return {"epsilon": number_text(Fraction(reached) - Fraction(reading))}, rest


def _shown(amounts: Named, *, up: bool, asked: Named | None = None) -> str:
    """Write amounts for people, without zeros except of what is asked."""
    short = short_up if up else short_down
    parts = [
        f"{name} {text if name in COUNTS else short(number_from_text(text))}"
        for name, text in amounts.items()
        if text != "0" or len(amounts) == 1 or (asked or {}).get(name, "0") != "0"
    ]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "nothing"
