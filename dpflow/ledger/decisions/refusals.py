"""The ledger's answer when a gate does not admit a step, in numbers and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from dpflow.accounting.rules.rule import COUNTS, Filter, Odometer
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import BudgetExhausted, BudgetRefused
from dpflow.ledger.account_ids import split
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.requests import Request, describe_cost
from dpflow.rounding import (
    number_from_text,
    number_text,
    reading_up,
    short_down,
    short_up,
)

#: Amounts in a theorem's own currency.
Named = Mapping[str, str]
#: Numbers and words of a refusal that its entry has.
JOURNALED = ("gate", "theorem", "asked", "left", "fits")
#: A larger multiple of a budget is not computed.
_MOST = 1000
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
        frozen: Author and reason of the freeze of the dataset.
        is_halted: Whether an odometer has halted the flow run.
        factor: Least growth of the noise with which the step fits, if it can.
        again: The first later part of a window for which it fits.
    """

    gate: Gate
    amount: Tally
    cause: str
    frozen: Mapping[str, Any] | None = None
    is_halted: bool = False
    factor: Fraction | None = None
    again: str | None = None


def describe_refusal(error: BudgetRefused) -> dict[str, Any]:
    """Return the facts of a refusal for the journal."""
    return {
        "refusal": type(error).__name__,
        "message": error.message,
        **{name: error.details[name] for name in JOURNALED},
    }


def read_refusal(body: Mapping[str, Any], **step: Any) -> BudgetRefused:
    """Return the error that a refusal's entry has, with facts of its step."""
    is_exhausted = body["refusal"] == BudgetExhausted.__name__
    kind = BudgetExhausted if is_exhausted else BudgetRefused
    step |= {name: body.get(name) for name in JOURNALED}
    return kind(body["message"], dataset=split(body["account"])[0], **step)


def refusal_error(
    request: Request, refusal: Refusal, kind: type[BudgetRefused]
) -> BudgetRefused:
    """Build the error with the requested and the remaining amount and a cost that fits.

    Args:
        request: The refused request.
        refusal: The first gate that does not admit it.
        kind: Class of the error.
    """
    gate = refusal.gate
    asked, left, reason = _shortage(gate, refusal.amount)
    by, dataset = f" by {_gate(gate)}", _dataset(gate)
    fits = "No further DP step of this flow run will be admitted."
    flow = f" of flow {request.flow!r}" if request.flow else ""
    begin, end = f"Step {request.step!r}{flow} was refused", " for it"
    if refusal.cause == "frozen":
        by, reason = "", f"{dataset} is {frozen_text(refusal.frozen or {})}."
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
        begin, end = f"The run{flow} was not begun: no whole run fits", ""
        by = f" {_gate(gate)}: {reason}"
        fits = (
            "dp_flow(partial=True) runs the steps that fit; a new term begins with "
            f"`dpflow policy apply {gate.dataset} --new-term --reason TEXT`."
        )
    elif refusal.cause == "halted":
        reason = "it has halted this flow run already."
    elif not refusal.is_halted:
        fits = _fitting(request, refusal)
        if refusal.again is not None:
            fits += f" With this noise it fits again for data from {refusal.again}."
    if refusal.cause != "run":
        by = f"{by}. {reason[0].upper()}{reason[1:]}"
    fields = (gate.kind, gate.rule.theorem, asked, left, fits)
    return kind(
        f"{begin}{by} {fits} Nothing was charged{end}.",
        dataset=gate.dataset,
        **describe_step(request),
        **dict(zip(JOURNALED, fields, strict=True)),
    )


def describe_step(request: Request) -> dict[str, Any]:
    """Return the step, flow, run and cost of a request, as its error has them."""
    names = ("flow", "flow_run", "step")
    fields = {name: getattr(request, name) for name in names}
    return {**fields, "cost": describe_cost(request.cost)}


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
    rule, remaining = gate.rule, gate.left()
    asked = rule.label(amount)
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
    if remaining is None:
        return asked, None, sentence
    left, budget = rule.label(remaining), "the budget outside reserved shares"
    if gate.kind == "flow":
        budget = "the flow's share"
    elif gate.kind != "others" and isinstance(rule, Filter):
        budget = f"(epsilon {short_up(rule.epsilon)}, delta {short_up(rule.delta)})"
    left_text = amounts_text(left, up=False, requested=asked)
    currency = f"In its currency it needs {amounts_text(asked)}. Remaining: {left_text}"
    return asked, left, f"{sentence} {currency} of {budget}."


def _budget(gate: Gate) -> str:
    return "the share" if gate.kind == "flow" else "the budget"


def _fitting(request: Request, refusal: Refusal) -> str:
    """Say at which noise a step would fit, or what is missing."""
    gate, factor = refusal.gate, refusal.factor
    if factor is not None and factor <= _MOST_NOISE:
        return (
            f"With {short_up(factor)} times its noise it would still fit: "
            f"{request.cost.noisier(factor).round_noise()!r}. This would use all that "
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


# Shortages


class Shortage(NamedTuple):
    """The component of a budget of which the smallest part of a step would fit.

    Attributes:
        component: Its name; "" if the budget has no other.
        needed: Needed share of the budget.
        remaining: Remaining share of the budget.
    """

    component: str
    needed: Fraction
    remaining: Fraction

    @classmethod
    def measure(cls, rule: Filter, used: Tally, amount: Tally) -> Shortage:
        """Return what a budget lacks for a step.

        Args:
            rule: The filter that does not admit the step; no union of filters.
            used: Settled and held amounts.
            amount: Amount of the step.
        """
        if rule.limit is None:
            before, after = map(rule.used_fraction, (used, used + amount))
            needed = Fraction(min(after - before, 2.0 * _MOST))
            return cls("", needed, Fraction(max(1 - before, 0.0)))
        limits = rule.limit.amounts
        several, shares = sum(map(bool, limits)) > 1, []
        sums = zip(rule.components, used.amounts, amount.amounts, limits, strict=True)
        for name, spent, more, limit in sums:
            divisor, own = limit or 1, name if several else ""
            remaining = Fraction(max(limit - spent, 0), divisor)
            shares += [cls(own, Fraction(more, divisor), remaining)] if more else []
        none = cls("", Fraction(0), Fraction(0))
        return min(shares, key=lambda own: own.remaining / own.needed, default=none)

    def text(self, budget: str) -> str:
        """Return the needed and the remaining share in words."""
        remaining = short_down(100 * self.remaining, 3)
        return f"{self.part(self.needed, budget)}, {remaining}% remain"

    def part(self, share: Fraction, budget: str) -> str:
        """Return a part of the budget in words, rounded up."""
        own = f"{budget}'s {self.component}" if self.component else budget
        if share > 1:
            many = f"more than {_MOST:,}" if share > _MOST else short_up(share, 3)
            return f"{many} times {own}"
        return f"{short_up(100 * share, 3)}% of {own}"


def describe_members(rule: Filter, used: Tally, amount: Tally) -> Iterator[str]:
    """Say why each member of a union of filters does not admit a step."""
    before, after = (
        {id(member): own for member, own in rule.covering(total)}
        for total in (used, used + amount)
    )
    for member in rule.members:
        own, total = before.get(id(member)), after.get(id(member))
        reason = "cannot price this step"
        if own is None:
            reason = "ended at an earlier step that it cannot price"
        elif not member.admits(own):
            reason = "ended, its budget is used up"
        elif total is not None:
            shortage = Shortage.measure(member, own, total - own)
            reason = f"needs {shortage.text('its budget')}"
        yield f"{member.theorem} {reason}"
