"""Decisions made again: may an entry say what it says?

`journal.follow` knows what each kind does. Here its gates are asked: of each grant, of
each settlement for less than was held, of each term and of each overdraft.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from operator import add, le
from typing import Any

from dpflow.accounting.rules.rule import Filter, Odometer, Rule, ThresholdFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import admits_less
from dpflow.exceptions import DpflowError
from dpflow.ledger.decision.announced import gates_text
from dpflow.ledger.decision.gates import gate_rule
from dpflow.ledger.decision.settlement import TOO_LITTLE, is_lesser, is_too_little
from dpflow.ledger.entry import Amounts, Entry, JournalError, canonical
from dpflow.ledger.model import rule_of
from dpflow.ledger.records import digest
from dpflow.ledger.rows import Term, gate_in, split
from dpflow.ledger.state import State
from dpflow.policy.reserved import charges_others


def check(state: State, entry: Entry) -> None:
    """Check the next entry on the state before it.

    Raises:
        JournalError: If it is a decision that is never made.
    """
    check_roots(state, entry)
    if entry.kind == "reserve":
        check_grant(state, entry)
        for name, (_, settled, held) in entry.postings.items():
            total = tuple(map(add, settled, held))
            if not is_admitted(term_of_account(state, name), name, total):
                what = f"a step was granted on account {name!r} above its gate"
                raise JournalError(what)
    elif entry.kind == "settle":
        if is_lesser(state, entry) and is_too_little(state, entry):
            raise JournalError(TOO_LITTLE)
    elif entry.kind in ("open", "tighten"):
        check_term(state, entry)
    elif entry.kind in ("adjust", "repair"):
        check_overdraft(state, entry)


def _roots(entry: Entry) -> list[str]:
    """Return the accounts of the whole terms that an entry posts to."""
    terms = dict.fromkeys(split(name)[:2] for name in entry.amounts)
    return [f"{book}#{number}" for book, number in terms]


def check_roots(state: State, entry: Entry) -> None:
    """Check that a charged term has the account that says so.

    Raises:
        JournalError: If one has none.
    """
    for root in _roots(entry):
        if root not in entry.amounts and state.account(root) is None:
            what = f"it charges parts of {root!r}, and not the whole"
            raise JournalError(what)


def check_grant(state: State, entry: Entry) -> None:
    """Check all of a grant but whether its gates admit it.

    Raises:
        JournalError: If such a step is never granted.
    """
    flow, names = entry.body.get("flow"), entry.amounts
    for book in dict.fromkeys(split(name)[0] for name in names):
        found = state.book(book)
        term = state.newest(book)
        if term is None or found.frozen is not None:
            what = f"a step was granted while {book!r} was frozen, or had no policy"
            raise JournalError(what)
        unpaid = charges_others(term.facts["pinned"], flow)
        if unpaid and f"{book}#{term.number}/others" not in names:
            what = "a step was granted that no reserved share pays, nor the rest"
            raise JournalError(what)
    for name in names:
        book, number = split(name)[:2]
        account = state.account(name)
        if number != state.book(book).terms:
            what = f"a step was granted on account {name!r} of another term"
            raise JournalError(what)
        if account is not None and account.overdrawn:
            what = f"a step was granted on account {name!r}, which is overdrawn"
            raise JournalError(what)


def check_overdraft(state: State, entry: Entry) -> None:
    """Check that an entry says which accounts it overdraws.

    Raises:
        JournalError: If it keeps one to itself.
    """
    told = entry.body.get("overdrawn", ())
    for name, (amount, settled, held) in entry.postings.items():
        found = gate_rule(term_of_account(state, name), *split(name)[2:4])
        above = found is not None and isinstance(found[0], Filter)
        total = tuple(map(add, settled, held))
        if above and any(amount) and name not in told:
            term = term_of_account(state, name)
            if not is_admitted(term, name, total):
                what = f"account {name!r} is overdrawn, and the entry does not say so"
                raise JournalError(what)


def term_of_account(state: State, name: str) -> Term:
    """Return the term that an account belongs to.

    Raises:
        JournalError: If there is none.
    """
    book, number = split(name)[:2]
    found = state.term(book, number)
    if found is None:
        what = f"account {name!r} is of no term"
        raise JournalError(what)
    return found


def is_admitted(term: Term, account: str, total: Amounts) -> bool:
    """Say whether the gate of an account admits a total."""
    _, _, kind, name, _ = split(account)
    found = gate_rule(term, kind, name)
    if found is None:
        return False
    rule, halt = found
    if isinstance(rule, Filter):
        # A later version may have solved a lower threshold than the one at that time.
        return rule.admits(Tally(total)) or _fits_pinned(term, kind, name, total)
    if halt is None or not isinstance(rule, Odometer):
        return True
    reading = rule.read(Tally(total))
    return reading != float("inf") and Fraction(reading) <= halt


def _fits_pinned(term: Term, kind: str, name: str, total: Amounts) -> bool:
    """Say whether sums are below the thresholds that a term pinned, if it did."""
    gate = gate_in(term.facts["gates"], kind, name)
    limits = None if gate is None else json.loads(gate["rule"]).get("thresholds")
    if not isinstance(limits, list) or len(limits) != len(total):
        return False
    return all(map(le, total, limits))


# Terms


def check_term(state: State, entry: Entry) -> None:
    """Check that a term has the gates of its policy, and that a tightening is one.

    Raises:
        JournalError: If not.
    """
    facts, book = entry.body["term"], str(entry.body["book"])
    after = Term(book, facts["number"], entry.number, facts)
    _check_pins(after)
    if entry.kind == "tighten":
        _check_tighter(state.term(book, after.number), after)


def _check_pins(term: Term) -> None:
    """Compare the gates of a term with the copy of the policy that it pinned."""
    facts = term.facts
    if digest(canonical(facts["pinned"])) != facts["policy_hash"]:
        what = f"the pinned policy of term {term.number} was edited"
        raise JournalError(what)
    try:
        wanted = gates_text(facts["pinned"])
    except DpflowError as error:
        what = f"the pinned policy of term {term.number} cannot be read: {error}"
        raise JournalError(what) from error
    for place, told in facts["gates"].items():
        made = wanted.get(place)
        # A flow that was taken off keeps the gate under which it was charged.
        if not (place in wanted or _took_off(facts["pinned"], place)) or (
            place in wanted and not _is_pinned(told, made)
        ):
            what = f"a gate is not the one that term {term.number} pinned: {place!r}"
            raise JournalError(what)
    if wanted.keys() - facts["gates"].keys():
        what = f"a gate that term {term.number} pinned is not there"
        raise JournalError(what)


def _took_off(pinned: Mapping[str, Any], place: str) -> bool:
    # Accounts stay when the last reserved share is dropped.
    dropped = place == "others" and "others" not in pinned
    flow = place.partition("/")[2]
    return dropped or (bool(flow) and flow not in pinned["flows"])


def _is_pinned(told: Mapping[str, Any] | None, made: Mapping[str, Any] | None) -> bool:
    """Say whether a gate is the one that a copy makes; its thresholds may be lower."""
    if told is None or made is None:
        return told is made
    old, new = rule_of(told["rule"]), rule_of(made["rule"])
    if isinstance(old, ThresholdFilter) and isinstance(new, ThresholdFilter):
        lower = old.limit.fits_within(new.limit)
    else:
        lower = True
    return lower and (old, told["halt"]) == (new, made["halt"])


def _check_tighter(before: Term | None, after: Term) -> None:
    if before is None:
        what = f"term {after.number} is tightened, which does not govern"
        raise JournalError(what)
    for place in before.facts["gates"]:
        kind, _, name = place.partition("/")
        if place == "others":
            continue  # it may grow with a reserved share's end
        old, new = gate_rule(before, kind, name), gate_rule(after, kind, name)
        if old is not None and (new is None or not is_tighter(old, new)):
            what = f"gate {place!r} of term {after.number} was loosened in place"
            raise JournalError(what)


def is_tighter(
    old: tuple[Rule, Fraction | None], new: tuple[Rule, Fraction | None]
) -> bool:
    """Say whether a rule with its halt admits no more than another one."""
    if isinstance(old[0], Filter) and isinstance(new[0], Filter):
        return old[0] == new[0] or admits_less(new[0], old[0])
    lower = old[1] is None or (new[1] is not None and new[1] <= old[1])
    return old[0] == new[0] and lower
