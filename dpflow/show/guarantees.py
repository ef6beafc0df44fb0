"""What a dataset's terms and shares guarantee, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.forecast.counting import reach_of_shares
from dpflow.ledger import TermView
from dpflow.ledger.views.entries import percent_text
from dpflow.policy.lifetime import (
    UNCHOSEN,
    differing,
    fits,
    is_late,
    odds_of,
    say_total,
    tally_of,
)
from dpflow.policy.pinned import budget_text, guarantee_in_words

#: What the shares of the flows leave over is not worth a word above this.
_NEARLY_ALL = 0.99
_REST = (
    ", and no flow can use the rest: epsilons of shares do not add up, so raise them "
    "until this says 100%."
)
_OVERDRAWN = (
    "More was charged in an overdrawn term than its budget: no sum of budgets bounds "
    "what all terms lose."
)
_NO_SUM = (
    "A charged term does not add up in the tally of the first one: no sum bounds what "
    "all terms lose."
)
_DIFFERENT = (
    "Charged terms protect different units or relations: their sum is a guarantee of "
    "none of them."
)


def term_guarantee(
    copy: Mapping[str, Any], terms: Sequence[TermView] = (), *, shortly: bool = False
) -> str:
    """Return the guarantee of a dataset's newest term, with its assumptions.

    A tightened term is bound for certain by the budget that it was opened with only.

    Args:
        copy: What `Policy.to_pinned` or `Policy.to_declared` returned.
        terms: The dataset's terms, oldest first; none if it has none yet.
        shortly: Whether the words that all guarantees share stand above already.
    """
    # What a divided dataset was opened with is the cap of all its parts together.
    is_whole = terms and not terms[-1].divided
    budget = terms[-1].opened if is_whole else copy["budget"]
    if is_whole and "window" in copy:
        # All terms share the sums of windows, which the first may have filled.
        budget = next((view.opened for view in terms if view.charged), budget)
    pinned = {**copy, "budget": budget}
    text = guarantee_in_words(pinned, _all_terms(copy, terms), shortly=shortly)
    if not is_whole or budget == terms[-1].budget:
        return text
    admitted = budget_text(terms[-1].budget)
    return (
        f"{text} The term was opened with it; now steps are admitted up to {admitted}."
    )


def adds_up(copy: Mapping[str, Any], terms: Sequence[TermView]) -> bool:
    """Return True if a sum, within the lifetime if there is one, bounds all terms.

    A term that was replaced uncharged may be amended later, past the lifetime.
    """
    views, lifetime = _counting(terms), copy.get("lifetime")
    counted = [view.counted for view in views]
    return (
        {term[:2] for term in counted} <= {(copy["unit"], copy["relation"])}
        and not any(view.overdrawn for view in views)
        and not differing(counted)
        and (lifetime is None or fits(counted, lifetime))
    )


def _counting(terms: Sequence[TermView]) -> list[TermView]:
    """Return the charged terms, and the newest one, which will be charged."""
    return [view for view in terms if view.charged or view is terms[-1]]


def _all_terms(copy: Mapping[str, Any], terms: Sequence[TermView]) -> str | None:
    """Say what all terms together may lose; None where only the policy says it."""
    views, lifetime = _counting(terms), copy.get("lifetime")
    if lifetime is None or not views:
        return None
    cap, promised = budget_text(lifetime), views[0].promised
    if not adds_up(copy, terms):
        return (
            f"All terms together may exceed the lifetime {cap}: some protect another "
            "unit or relation, have another filter, lost more than their budget, or "
            "were charged after they had been replaced."
        )
    if promised is None or is_late(lifetime, promised):
        return (
            f"The lifetime {cap} limits further terms. It was named or raised after "
            f"the first charge, and is a guarantee {UNCHOSEN}."
        )
    text = f"All terms together stay within {budget_text(promised)}"
    if lifetime != promised:
        text += f"; further ones fit up to {cap}"
    charged = [view.counted for view in views if view.charged]
    if tally_of(charged):
        text += f"; those charged so far within {say_total(charged, lifetime)}"
    return f"{text}."


def odds_in_words(copy: Mapping[str, Any], terms: Sequence[TermView]) -> str:
    """Say how often a guess about one privacy unit is right, by all releases together.

    Args:
        copy: What `Policy.to_pinned` returned.
        terms: The dataset's terms, oldest first, or its file as a term.

    Returns:
        One sentence; "" where no sum bounds what all terms lose.
    """
    views, lifetime, unit = _counting(terms), copy.get("lifetime"), copy["unit"]
    if not adds_up(copy, terms):
        return ""
    if "population" in copy:
        return f"The odds of one {unit} are those of population {copy['population']!r}."
    counted, scope = [view.counted for view in views], "all releases of the term"
    if len(counted) > 1:
        scope = f"all releases of {len(counted)} terms"
    condition = f" and {UNCHOSEN}" if len(counted) > 1 else ""
    by = copy.get("partition", {}).get("by")
    if lifetime is not None:
        late = is_late(lifetime, views[0].promised)
        scope, condition = "all releases within the lifetime", f" and {UNCHOSEN}" * late
    elif "window" in copy:
        # All terms share the sums of windows, which the first may have filled.
        counted, condition = counted[:1], ""
        scope = f"the releases of any {copy['window']['length']} consecutive {by}s"
    if views[-1].by_time and (lifetime is not None or "window" in copy):
        unit = unit.removesuffix(f"-{by}")
    odds = odds_of(counted, lifetime, copy.get("whole", copy["filter"]))
    is_replaced = copy["relation"] == "replace-one"
    question = "which of two rows is that of" if is_replaced else "whether"
    question += f" one {unit}" + " is in the data" * (not is_replaced)
    return (
        "Someone who knows everything else, and holds both for equally likely, guesses "
        f"from {scope} {question}: right at most {float(odds):g} times in 100 (a coin: "
        f"50), if the declared costs are right{condition}."
    )


def shares_in_words(copy: Mapping[str, Any]) -> str:
    """Say how much of the budget the shares of the flows can use; "" if none has one.

    A share is a limit, not a reserve: what all flows use together ends at the budget.

    Args:
        copy: What `Policy.to_pinned` returned.
    """
    reach = reach_of_shares(copy)
    if reach is None:
        return ""
    used = f"The flows' shares can use {percent_text(reach)} of the budget"
    text = f"{used} {budget_text(copy['budget'])}"
    if reach > 1:
        return f"{text}: it may be used up before a flow has used its share."
    is_shared = all(share["filter"] is not None for share in copy["flows"].values())
    has_rest = reach < _NEARLY_ALL and is_shared and copy["other_flows"] == "refuse"
    return f"{text}{_REST if has_rest else '.'}"


def terms_in_words(terms: Sequence[TermView]) -> str:
    """Say which terms a dataset has had, and what they add up to.

    Args:
        terms: All of them, oldest first.
    """
    if not terms:
        return "No term is open yet."
    parts = [f"Terms so far: {'; '.join(_term_text(view) for view in terms)}."]
    charged = [view for view in terms if view.charged]
    counted = [view.counted for view in charged]
    if any(view.overdrawn for view in charged):
        parts.append(_OVERDRAWN)
    elif charged and terms[-1].window and terms[-1].lifetime is None:
        length = terms[-1].window
        parts.append(f"Together they stay within the budget in any {length} parts.")
    elif charged and differing(counted):
        parts.append(_NO_SUM)
    elif charged:
        lifetime, condition = terms[-1].lifetime, f", {UNCHOSEN}" * (len(charged) > 1)
        parts.append(
            f"Charged terms add up to {say_total(counted, lifetime)}{condition}."
        )
        cap = f"The lifetime is {budget_text(lifetime)}." if lifetime else ""
        parts.append(cap or "No lifetime is set.")
    if len({(view.unit, view.relation) for view in charged}) > 1:
        parts.append(_DIFFERENT)
    return " ".join(parts)


def _term_text(view: TermView) -> str:
    budget = view.budget if view.divided else view.opened
    text = f"{view.number} {budget_text(budget)} for {view.unit} ({view.relation})"
    if view.divided:
        text += f", all parts within {budget_text(view.opened)}"
    elif view.opened != view.budget:
        text += f", tightened to {budget_text(view.budget)}, counted as opened"
    if not view.charged:
        text += ", not charged"
    if view.overdrawn:
        text += ", overdrawn"
    return text if view.frozen is None else f"{text}, frozen"
