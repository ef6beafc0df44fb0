"""Decisions checked again: may an entry say what it says?

`journal.follow` knows what each kind does. Here an entry passes the rules of its
decision: of each grant, of each settlement and void for less than was held, of
each term and of each overdraft.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from operator import add, le
from typing import Any

from dpflow.accounting.rules.rule import Filter, ThresholdFilter
from dpflow.accounting.rules.tally import Tally
from dpflow.accounting.rules.tightening import admits_less
from dpflow.exceptions import DpflowError
from dpflow.ledger.decision.gates import (
    RuleAndHalt,
    account_state,
    gates_text,
    rule_admits,
    rule_and_halt,
)
from dpflow.ledger.decision.lifetime import lifetime_error, term_views, view_of
from dpflow.ledger.decision.settlement import gate_of, least_posted
from dpflow.ledger.decision.terms import BY_ITSELF, currency_of, may_be_replaced
from dpflow.ledger.decision.windows import continuation_problem, window_total
from dpflow.ledger.entry import Amounts, Entry, JournalError, canonical
from dpflow.ledger.records import digest
from dpflow.ledger.rows import Term, gate_in, roots_of, split
from dpflow.ledger.state import State
from dpflow.policy.lifetime import promise_of
from dpflow.policy.reserved import charges_others

#: Kinds that raise what is used.
_RAISING = ("reserve", "adjust", "repair")


def check(state: State, entry: Entry) -> None:
    """Check the next entry on the state before it.

    Raises:
        JournalError: If no command decides so.
    """
    problem: str | None = None
    if entry.kind == "reserve":
        check_grant(state, entry)
        for name, total in totals(entry):
            if not is_admitted(state.term(*split(name)[:2]), name, total):
                problem = f"a step was granted on account {name!r} above its gate"
    elif entry.kind in ("settle", "void"):
        problem = _return_problem(state, entry)
    elif entry.kind in ("open", "tighten"):
        problem = _term_problem(state, entry) or _promise_problem(state, entry)
    elif entry.kind in ("adjust", "repair"):
        problem = _overdraft_problem(state, entry)
    if problem is not None:
        raise JournalError(problem)


def totals(entry: Entry) -> Iterator[tuple[str, Amounts]]:
    """Yield what is settled and held on each account of an entry after it."""
    for name, (_, settled, held) in entry.postings.items():
        yield name, tuple(map(add, settled, held))


def check_windows(state: State, entry: Entry) -> None:
    """Check the sums of windows that an entry raised, on the state after it.

    Raises:
        JournalError: If a grant is above its gate, or an overdraft is not noted.
    """
    for name in entry.amounts if entry.kind in _RAISING else ():
        total = window_total(state, name)
        term = state.term(*split(name)[:2])
        if total is None or is_admitted(term, name, total.amounts):
            continue
        grants = entry.kind == "reserve"
        if grants or name not in entry.body.get("overdrawn", ()):
            why = "above its gate" if grants else "without a note of its overdraft"
            what = f"a window of account {name!r} was charged {why}"
            raise JournalError(what)


def check_grant(state: State, entry: Entry) -> None:
    """Check all of a grant but whether its gates admit it.

    Raises:
        JournalError: If such a step is never granted.
    """
    for name in entry.amounts:
        book, number = split(name)[:2]
        term, root = state.newest(book), f"{book}#{number}"
        if not number and term is not None:
            number, root = term.number, term.whole
        if term is None or term.number != number:
            problem = "of another term"
        elif (it := account_state(state, book, state.account(name))) != "open":
            problem = f"which is {it}"
        elif root not in entry.amounts:
            problem = "and not on the whole of its term"
        elif f"{root}/others" not in entry.amounts and charges_others(
            term.facts["pinned"], entry.body.get("flow")
        ):
            problem = "and no reserved share pays for it, nor the rest"
        else:
            continue
        what = f"a step was granted on account {name!r}, {problem}"
        raise JournalError(what)


def is_admitted(term: Term | None, account: str, total: Amounts) -> bool:
    """Say whether the gate of an account admits a total.

    Steps may have been granted up to the thresholds that the term pinned: a later
    version that solves lower ones grants no more, and finds no fault with these.
    """
    gate = term and gate_in(term.facts["gates"], *split(account)[2:4])
    asked = rule_and_halt(gate)
    if gate is None or asked is None or rule_admits(*asked, Tally(total)):
        return asked is not None
    limits = json.loads(gate["rule"]).get("thresholds")
    pinned = limits is not None and isinstance(asked[0], ThresholdFilter)
    return pinned and all(map(le, total, limits))


def _overdraft_problem(state: State, entry: Entry) -> str | None:
    """Say whether a charge of an operator leaves out a whole term, or an overdraft."""
    roots = roots_of(entry.amounts)
    books = {split(name)[0] for name in entry.amounts}
    missing = {*roots} - entry.amounts.keys() or books - {split(r)[0] for r in roots}
    if missing:
        return f"it charges parts of {min(missing)!r}, and not the whole"
    for name, total in totals(entry):
        term, amount = state.term(*split(name)[:2]), Tally(entry.amounts[name])
        above = gate_of(state, name).overdrawn_by(amount)
        said = name in entry.body.get("overdrawn", ())
        if above and not said and not is_admitted(term, name, total):
            return f"account {name!r} is overdrawn, and the entry does not say so"
    return None


def _return_problem(state: State, entry: Entry) -> str | None:
    """Say whether a charge returned more than its outcome allows.

    A settlement at more than the running version's price is never refused, because an
    older version may have had higher prices.
    """
    charge, body, posted = state.charge(entry.charge), entry.body, entry.amounts
    if charge is None or charge.covers is not None:
        return None
    if entry.kind == "void":
        body = {**body, "outcome": "void"}
        posted = {name: (0,) * len(amount) for name, amount in posted.items()}
    elif posted == charge.held:
        return None
    least = least_posted(state, charge, body)
    for name, amount in posted.items():
        if not all(map(le, map(min, least[name], charge.held[name]), amount)):
            return "a step was settled for less than its outcome costs"
    return None


def _term_problem(state: State, entry: Entry) -> str | None:
    """Say what is wrong with a term's gates, or with a tightening."""
    facts, book = entry.body["term"], str(entry.body["book"])
    number, gates, before = facts["number"], facts["gates"], {}
    if digest(canonical(facts["pinned"])) != facts["policy_hash"]:
        return f"the pinned policy of term {number} was edited"
    try:
        wanted = gates_text(facts["pinned"])
    except DpflowError as error:
        return f"the pinned policy of term {number} cannot be read: {error}"
    if entry.kind == "tighten":
        governs = state.term(book, number)
        if governs is None:
            return f"term {number} is tightened, which does not govern"
        before = governs.facts["gates"]
    elif problem := continuation_problem(
        state, book, facts["pinned"], entry.body.get("forgotten", ())
    ):
        return f"term {number} does not go on with its windows: {problem}"
    # A flow that was removed keeps the gate under which it was charged.
    wanted = {**before, **wanted}
    if gates.keys() != wanted.keys():
        return f"term {number} has other gates than it pinned"
    for place, gate in gates.items():
        if not _is_pinned(gate, wanted[place]):
            return f"a gate is not the one that term {number} pinned: {place!r}"
        old = rule_and_halt(before.get(place))
        # The rest may grow when a reserved share ends.
        if (
            place in before
            and place != "others"
            and not is_tighter(old, rule_and_halt(gate))
        ):
            return f"gate {place!r} of term {number} was loosened in place"
    return None


def _promise_problem(state: State, entry: Entry) -> str | None:
    """Say how a term breaks the promise for all terms, if it does not say so."""
    facts, book = entry.body["term"], str(entry.body["book"])
    fixed = promise_of(facts["pinned"], facts["declared"], facts["gates"])
    governs = state.term(book, facts["number"])
    fixed["currency"] = currency_of(facts["pinned"], facts["gates"])
    if governs is not None:
        fixed = {name: governs.facts[name] for name in fixed}
    if any(facts[name] != value for name, value in fixed.items()):
        return f"term {facts['number']} counts otherwise than it was opened"
    opens, newest = governs is None, state.newest(book)
    if opens and facts["reason"] in BY_ITSELF:
        if newest is None or may_be_replaced(state, newest):
            return None
        return f"no step opens term {facts['number']} after one that governs"
    terms = term_views(state, book, entry.body.get("forgotten", ()))
    raises = bool(entry.body.get("raises"))
    error = lifetime_error(book, terms, view_of(facts), opens=opens, raises=raises)
    return None if error is None else error.message


def _is_pinned(
    gate: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None
) -> bool:
    """Say whether a gate is the one that a copy makes; its thresholds may be lower."""
    said, made = rule_and_halt(gate), rule_and_halt(wanted)
    if said is None or made is None or said != made:
        return said is made
    # Those of `others` are in no parameter.
    limit, most = (getattr(rule, "limit", None) for rule, _ in (said, made))
    return limit is None or limit.fits_within(most)


def is_tighter(old: RuleAndHalt | None, new: RuleAndHalt | None) -> bool:
    """Say whether a rule with its halt admits no more than another one."""
    if old is None or new is None:
        return old is None
    if isinstance(old[0], Filter) and isinstance(new[0], Filter):
        return old[0] == new[0] or admits_less(new[0], old[0])
    lower = old[1] is None or (new[1] is not None and new[1] <= old[1])
    return old[0] == new[0] and lower
