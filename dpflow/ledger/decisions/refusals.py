"""The ledger's answer when a gate does not admit a step, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from dpflow.accounting.rules.rule import COUNTS, Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.decisions.shortage import Shortage, describe_members
from dpflow.ledger.requests import Request
from dpflow.rounding import (
    number_from_text,
    number_text,
    reading_up,
    short_down,
    short_up,
)

#: Amounts in a theorem's own currency.
Named = Mapping[str, str]
_JOURNALED = ("gate", "theorem", "asked", "left", "fits")
#: More than this many times the declared noise is no advice.
_MOST_NOISE = 10


class Refusal(NamedTuple):
    """A gate that does not admit a step.

    Attributes:
        gate: The gate.
        amount: The step's request to its account.
        cause: "frozen"; "closed" if the policy gives the flow no access; "halted" if
            this account has halted the flow run; "overdrawn"; "run" if the rest of a
            whole run does not fit; else "full": the amount does not fit.
    """

    gate: Gate
    amount: Tally
    cause: str


def journaled(error: BudgetRefused) -> dict[str, Any]:
    """Return the facts of a refusal for the journal."""
    return {
        "refusal": type(error).__name__,
        "message": error.message,
        **{name: error.details[name] for name in _JOURNALED},
    }


def refusal_error(
    request: Request,
    refusal: Refusal,
    kind: type[BudgetRefused],
    *,
    frozen: Mapping[str, Any] | None = None,
    halted: bool = False,
    factor: Fraction | None = None,
    again: str | None = None,
) -> BudgetRefused:
    """Build the error with the requested and the remaining amount and a cost that fits.

    Args:
        request: The refused request.
        refusal: The first gate that does not admit it.
        kind: Class of the error.
        frozen: Author and reason of the freeze of the dataset.
        halted: Whether an odometer has halted the flow run.
        factor: Least growth of the noise with which the step fits, if it can.
        again: The first later part of a window for which it fits.
    """
    gate = refusal.gate
    asked, left, reason = _shortage(gate, refusal.amount)
    by, dataset = f" by {_gate(gate)}", _dataset(gate)
    fits = "No further DP step of this flow run will be admitted."
    if refusal.cause == "frozen":
        by, reason = "", f"{dataset} is {frozen_text(frozen or {})}."
        fits = f"Nothing fits until `dpflow unfreeze {gate.dataset}`."
    elif refusal.cause == "closed":
        by = f" by the list of flows in the policy of {dataset}"
        reason = "this step is in no flow of that list."
        fits = (
            "Run it in a flow that stands under `flows:` in the policy, or add its "
            f"flow there: `dpflow policy diff {gate.dataset}` says what that takes."
        )
    elif refusal.cause == "overdrawn":
        reason, fits = "the account is overdrawn.", "No step fits an overdrawn account."
    elif refusal.cause == "run":
        return _refuse_run(request, gate, (asked, left), reason)
    elif refusal.cause == "halted":
        reason = "it has halted this flow run already."
    elif not halted:
        fits = _fitting(request, refusal, factor)
        if again is not None:
            fits += f" With this noise it fits again for data from {again}."
    flow = f" of flow {request.flow!r}" if request.flow else ""
    message = (
        f"Step {request.step!r}{flow} was refused{by}. "
        f"{reason[0].upper()}{reason[1:]} {fits} Nothing was charged for it."
    )
    return kind(message, **_details(request, gate, (asked, left), fits))


def _details(
    request: Request, gate: Gate, amounts: tuple[Named, Named | None], fits: str
) -> dict[str, Any]:
    facts = (gate.kind, gate.rule.theorem, *amounts, fits)
    names = ("flow", "flow_run", "step")
    details = {name: getattr(request, name) for name in names}
    details |= {"dataset": gate.dataset, "cost": request.cost.describe()}
    return details | dict(zip(_JOURNALED, facts, strict=True))


def _refuse_run(
    request: Request, gate: Gate, amounts: tuple[Named, Named | None], reason: str
) -> BudgetExhausted:
    """Build the error of a flow run that cannot end."""
    fits = (
        "dp_flow(partial=True) runs the steps that fit; a new term begins with `dpflow "
        f"policy apply {gate.dataset} --new-term`."
    )
    message = (
        f"The run of flow {request.flow!r} was not begun: no whole run fits "
        f"{_gate(gate)}: {reason} {fits} Nothing was charged."
    )
    return BudgetExhausted(message, **_details(request, gate, amounts, fits))


def frozen_text(freeze: Mapping[str, Any]) -> str:
    """Say who froze a dataset and why."""
    return f"frozen by {freeze.get('who', 'unknown')}: {freeze.get('reason', '')!r}"


# Words


def _gate(gate: Gate) -> str:
    theorem, name, dataset = gate.rule.theorem, gate.name, _dataset(gate)
    if gate.window is not None:
        length = gate.window.length
        dataset = f"{length} parts around {gate.partition!r} of {dataset}"
    elif gate.partition:
        dataset = f"partition {gate.partition!r} of {dataset}"
    texts = {
        "others": f"the reserved shares of {dataset}",
        "flow": f"the share of flow {name!r} in {dataset}",
        "odometer": f"the {theorem} odometer of flow {name!r} on {dataset}",
    }
    return texts.get(gate.kind, f"the {theorem} filter of {dataset}")


def _dataset(gate: Gate) -> str:
    if gate.kind == "population":
        return f"population {gate.dataset.partition('/')[2]!r}"
    return f"dataset {gate.dataset!r}"


def _shortage(gate: Gate, amount: Tally) -> tuple[Named, Named | None, str]:
    """Return the requested and the remaining amount of an account, and a sentence.

    Of a halt: the rise of the reading, and its distance from the halt, rounded down.
    """
    rule, rest = gate.rule, gate.left()
    asked = rule.named(amount)
    if isinstance(rule, Odometer) and gate.halt is not None:
        reading, reached = rule.read(gate.used), rule.read(gate.used + amount)
        distance = Fraction(0)
        if reading != float("inf"):
            distance = max(gate.halt - Fraction(reading), distance)
        if reached != float("inf"):
            rise = Fraction(reached) - Fraction(reading)
            asked = {"epsilon": number_text(rise)}
        sentence = (
            f"its reading would rise from {reading_up(reading)} to "
            f"{reading_up(reached)}, above halt_at_epsilon {short_down(gate.halt)} "
            f"(at delta {short_up(rule.delta)})."
        )
        return asked, {"epsilon": number_text(distance)}, sentence
    if not isinstance(rule, Filter):
        return asked, None, f"it needs {amounts_text(asked)}."
    if rule.members:
        members = "; ".join(describe_members(rule, gate.total, amount))
        return asked, None, f"each of its members refuses it: {members}."
    shortage = Shortage.measure(rule, gate.total, amount)
    sentence = f"it needs {shortage.text(_budget(gate))}."
    if rest is None:
        return asked, None, sentence
    left, budget = rule.named(rest), "the budget outside reserved shares"
    if gate.kind == "flow":
        budget = "the flow's share"
    elif gate.kind != "others" and isinstance(rule, Filter):
        budget = f"(epsilon {short_up(rule.epsilon)}, delta {short_up(rule.delta)})"
    remaining = amounts_text(left, up=False, requested=asked)
    currency = f"In its currency it needs {amounts_text(asked)}. Remaining: {remaining}"
    return asked, left, f"{sentence} {currency} of {budget}."


def _budget(gate: Gate) -> str:
    return "the share" if gate.kind == "flow" else "the budget"


def _fitting(request: Request, refusal: Refusal, factor: Fraction | None) -> str:
    """Say at which noise a step would fit, or what is missing."""
    gate = refusal.gate
    if factor is not None and factor <= _MOST_NOISE:
        return (
            f"With {short_up(factor)} times its noise it would still fit: "
            f"{request.cost.noisier(factor).rounded()!r}. This would use all that "
            "remains."
        )
    none = "No amount of noise makes it fit." if factor is None else ""
    if none and gate.kind == "others":
        return f"{none[:-1]}: the rest is reserved."
    if not isinstance(gate.rule, Filter) or gate.rule.members:
        return none or "Only more than ten times its noise makes it fit."
    shortage = Shortage.measure(gate.rule, gate.total, refusal.amount)
    missing = shortage.part(shortage.needed - shortage.remaining, _budget(gate))
    return f"{none} Missing: {missing}.".lstrip()


def amount_text(component: str, text: str | None, *, up: bool = True) -> str:
    """Write one amount for people.

    Args:
        component: Its name in the tally.
        text: Exact decimal text, or None if there is no amount.
        up: Round up, as for used amounts; down is for remaining ones.
    """
    if text is None or component in COUNTS:
        return "-" if text is None else text
    number = number_from_text(text)
    return short_up(number) if up else short_down(number)


def amounts_text(
    amounts: Named | None, *, up: bool = True, requested: Named | None = None
) -> str:
    """Write amounts for people, without zeros.

    Args:
        amounts: Decimal text by component, or None if there are no amounts.
        up: Round up, as for used amounts; down is for remaining ones.
        requested: Amounts whose components are written unless they are zero.
    """
    if amounts is None:
        return "-"
    parts = [
        f"{name} {amount_text(name, text, up=up)}"
        for name, text in amounts.items()
        if text != "0" or (requested or {}).get(name, "0") != "0"
    ]
    return ", ".join(parts) or "0"
