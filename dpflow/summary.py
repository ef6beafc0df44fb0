"""Accounts in words and numbers, for the CLI, artifacts and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from dpflow.accounting.theorem import COUNTS
from dpflow.ledger.decision.lifetime import Budgets
from dpflow.ledger.records import (
    AccountView,
    OpenReservation,
    TermView,
    UnusualSteps,
)
from dpflow.ledger.views.accounts import partition_of
from dpflow.policy_copy import budget_text, guarantee_in_words
from dpflow.rounding import number_from_text, number_text, short_down, short_up
from dpflow.shares import reach_of_shares

#: What the shares of the flows leave over is not worth a word above this.
_NEARLY_ALL = 0.99


def term_guarantee(
    copy: Mapping[str, Any], terms: Sequence[TermView] = (), *, shortly: bool = False
) -> str:
    """Return the guarantee of a dataset's newest term, with its assumptions.

    A tightened term is bound for certain by the budget that it was opened with only.

    Args:
        copy: What `Policy.pinned` or `Policy.declared` returned.
        terms: The dataset's terms, oldest first; none if it has none yet.
        shortly: Whether the words that all guarantees share stand above already.
    """
    # What a divided dataset was opened with is the cap of all its parts together.
    whole = terms and not terms[-1].divided
    budget = terms[-1].opened if whole else copy["budget"]
    held = _lifetime_holds(copy, terms)
    return guarantee_in_words({**copy, "budget": budget}, adds_up=held, shortly=shortly)


def _lifetime_holds(copy: Mapping[str, Any], terms: Sequence[TermView]) -> bool:
    """Say whether the lifetime, if there is one, bounds what all terms lose.

    A term that was replaced uncharged may be amended later, past the lifetime.
    """
    charged = [view for view in terms if view.charged]
    protected = {(view.unit, view.relation) for view in charged}
    lifetime = copy.get("lifetime")
    return (
        protected <= {(copy["unit"], copy["relation"])}
        and not any(view.overdrawn for view in charged)
        and (lifetime is None or Budgets.of(charged).fit(lifetime))
    )


def sum_of_shares(copy: Mapping[str, Any]) -> dict[str, str] | None:
    """Return what the shares of the flows add up to; None if no flow has one.

    Args:
        copy: What `Policy.pinned` or `Policy.declared` returned.
    """
    shares = [s for s in copy["flows"].values() if s.get("epsilon") is not None]
    if not shares:
        return None
    return {
        name: number_text(sum((number_from_text(s[name]) for s in shares), Fraction(0)))
        for name in ("epsilon", "delta")
    }


def shares_in_words(copy: Mapping[str, Any]) -> str:
    """Say how much of the budget the shares of the flows can use; "" if none has one.

    A share is a limit, not a reserve: what all flows use together ends at the budget.

    Args:
        copy: What `Policy.pinned` returned.
    """
    reach = reach_of_shares(copy)
    if reach is None:
        return ""
    text = (
        f"The flows' shares can use {percent_text(reach)} of the budget "
        f"{budget_text(copy['budget'])}"
    )
    if reach > 1:
        return f"{text}: it may be gone before a flow has used its share."
    flows = copy["flows"].values()
    whole = all(share.get("epsilon") is not None for share in flows)
    if reach < _NEARLY_ALL and whole and copy["other_flows"] == "refuse":
        return (
            f"{text}, and no flow can use the rest: epsilons of shares do not add up, "
            "so raise them until this says 100%."
        )
    return f"{text}."


def terms_in_words(terms: Sequence[TermView]) -> str:
    """Say which terms a dataset has had, and what they add up to.

    Args:
        terms: All of them, oldest first.
    """
    if not terms:
        return "No term is open yet."
    parts = [f"Terms so far: {'; '.join(_term_text(view) for view in terms)}."]
    charged = [view for view in terms if view.charged]
    if charged:
        total = budget_text(Budgets.of(charged).total())
        lifetime = terms[-1].lifetime
        cap = "no lifetime is set" if lifetime is None else budget_text(lifetime)
        of = f"of the lifetime {cap}" if lifetime else f"and {cap}"
        parts.append(f"Charged terms add up to {total} {of}.")
    if any(view.opened != view.budget and not view.divided for view in terms):
        parts.append(
            "A tightened term counts as it was opened. Its smaller numbers hold where "
            "usage was below them and the tightening was decided without regard to "
            "what had been released."
        )
    if any(view.overdrawn for view in charged):
        parts.append(
            "More was charged in an overdrawn term than its budget: no sum of budgets "
            "bounds what all terms lose."
        )
    if len({(view.unit, view.relation) for view in charged}) > 1:
        parts.append(
            "Charged terms protect different units or relations: their sum is a "
            "guarantee of none of them."
        )
    return " ".join(parts)


def tightened_in_words(terms: Sequence[TermView]) -> str:
    """Say why a tightened term's guarantee is larger than its limit; "" if it is not.

    Args:
        terms: The dataset's terms, oldest first.
    """
    view = terms[-1] if terms else None
    if view is None or view.divided or view.opened == view.budget:
        return ""
    return (
        f"The guarantee stays {budget_text(view.opened)}, because the term was opened "
        f"with it; from now on steps are admitted up to {budget_text(view.budget)}."
    )


def _term_text(view: TermView) -> str:
    budget = view.budget if view.divided else view.opened
    text = f"{view.number} {budget_text(budget)} for {view.unit} ({view.relation})"
    if view.divided:
        text += f", all parts within {budget_text(view.opened)}"
    elif view.opened != view.budget:
        text += f", tightened to {budget_text(view.budget)}"
    if not view.charged:
        text += ", not charged"
    if view.overdrawn:
        text += ", overdrawn"
    return text if view.frozen is None else f"{text}, frozen"


def unusual_text(found: UnusualSteps) -> str:
    """Say which steps did not go as most do; "" if all did.

    Args:
        found: What `dpflow.ledger.views.unusual_steps` returned.
    """
    counted = {
        "drew their own noise": found.own_noise,
        "failed": found.failed,
        "were forfeited": found.forfeited,
    }
    parts = [f"{count:,} {what}" for what, count in counted.items() if count]
    if not parts:
        return ""
    which = "newest steps" if found.older else "steps so far"
    return f"Of the {which}, {', '.join(parts)}."


def amount_text(component: str, text: str | None, *, up: bool = True) -> str:
    """Write one amount for people.

    Args:
        component: Its name in the tally.
        text: Exact decimal text, or None where there is nothing to tell.
        up: Round up, as for what is spent; down is for what is left.
    """
    if text is None or component in COUNTS:
        return "-" if text is None else text
    number = number_from_text(text)
    return short_up(number) if up else short_down(number)


def held_step(item: OpenReservation) -> str:
    """Name an open step; a preflight with its run and what no step has drawn."""
    if item.covers is None:
        return item.step
    rest = next(iter(item.undrawn.values()), None)
    return f"{item.step}, run {item.covers}: {amounts_text(rest)} undrawn"


def amounts_text(amounts: Mapping[str, str] | None, *, up: bool = True) -> str:
    """Write amounts for people; components that are zero are left out.

    Args:
        amounts: Decimal text by component, or None where there is nothing to tell.
        up: Round up, as for what is spent; down is for what is left.
    """
    if amounts is None:
        return "-"
    parts = [
        f"{name} {amount_text(name, text, up=up)}"
        for name, text in amounts.items()
        if text != "0"
    ]
    return ", ".join(parts) or "0"


def shown_components(view: AccountView) -> list[str]:
    """Return the components that say something: not a delta of 0 of 0."""
    budget = view.budget or {}
    names = [
        name
        for name in view.spent
        if view.budget is None
        or any(
            amounts.get(name, "0") != "0"
            for amounts in (budget, view.spent, view.reserved, view.forfeited)
        )
    ]
    return names or list(view.spent)[:1]


def telling(views: Sequence[AccountView], most: int) -> list[AccountView]:
    """Return the accounts that tell most where there are too many to show.

    Args:
        views: Accounts of one dataset.
        most: About so many.

    Returns:
        All that belong to no part of a divided dataset, and of the parts the fullest
        and the newest ones; in the order of `views`.
    """
    parts = [view for view in views if _part(view)]
    if len(views) <= most or not parts:
        return list(views)
    room = max(most - (len(views) - len(parts)), 2)
    fullest = sorted(parts, key=lambda view: -_fullness(view))[: room // 2]
    newest = sorted(parts, key=_part, reverse=True)[: room - room // 2]
    kept = {view.id for view in (*fullest, *newest)}
    return [view for view in views if not _part(view) or view.id in kept]


def _part(view: AccountView) -> str:
    """Return which part an account is of; an announced one is of none yet."""
    if not view.id:
        return ""
    return view.name if view.kind == "partition" else partition_of(view.id)


def _fullness(view: AccountView) -> float:
    return view.used_fraction or 0.0


def percent_text(fraction: float | None) -> str:
    """Write a share as a percentage."""
    return "-" if fraction is None else f"{fraction:.1%}"


def account_title(view: AccountView) -> str:
    """Say which account this is."""
    return kind_title(view.kind, view.dataset, view.name, partition_of(view.id))


def kind_title(kind: str, dataset: str, name: str, partition: str = "") -> str:
    """Say which account of a dataset this is."""
    if kind == "dataset":
        return f"dataset {dataset}"
    if kind == "population":
        return dataset.replace("/", " ", 1)
    if kind == "partition":
        return f"partition {name}"
    inside = f" in {partition}" if partition else ""
    if kind == "flow":
        return f"share of {name}{inside}"
    return f"{kind} of {name}{inside}"


def reading_text(view: AccountView) -> str:
    """Write an odometer's reading with its delta, and where it halts the flow."""
    if view.reading is None:
        return "-"
    if not view.charged:
        return "epsilon 0"
    halt = ""
    if view.halt_at is not None:
        halt = f", halts at {short_down(number_from_text(view.halt_at))}"
    # An undefined reading is infinite; every other one is rounded up.
    defined = math.isfinite(view.reading)
    reading = short_up(Fraction(view.reading)) if defined else "infinity"
    delta = short_up(number_from_text(view.delta))
    return f"epsilon {reading} at delta {delta}{halt}"


def account_lines(views: list[AccountView]) -> list[str]:
    """Return a Markdown table with a column for each account."""
    rows: list[tuple[str, list[str]]] = [
        ("theorem", [view.theorem for view in views]),
        ("spent", [amounts_text(view.spent) for view in views]),
        ("reserved", [amounts_text(view.reserved) for view in views]),
        ("forfeited", [amounts_text(view.forfeited) for view in views]),
        ("left", [amounts_text(view.left, up=False) for view in views]),
        ("used", [percent_text(view.used_fraction) for view in views]),
        ("reading", [reading_text(view) for view in views]),
    ]
    titles = " | ".join(in_markdown(account_title(view)) for view in views)
    lines = [f"| | {titles} |", "| --- |" + " --- |" * len(views)]
    return lines + [f"| {name} | {' | '.join(cells)} |" for name, cells in rows]


def printable(text: str) -> str:
    """Make names from a journal harmless: no control sign reaches a page or picture."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{BULLET}" for c in text)


def in_markdown(text: str) -> str:
    """Keep a name from being a link, a picture, a tag, a line or a cell of a table."""
    line = printable(text).replace("\n", " ")
    return "".join(f"\\{c}" if c in "\\<[]|" else c for c in line)
