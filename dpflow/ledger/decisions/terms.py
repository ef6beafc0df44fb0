"""Terms: which copy of a policy governs a step, and how the next one opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dpflow.accounting.solving import before_solving
from dpflow.exceptions import ConfigurationError, PolicyChanged, PolicyNotApplied
from dpflow.ledger.canonical import by_identity, canonical, digest
from dpflow.ledger.decisions.decision import Author, Decision, Row
from dpflow.ledger.decisions.freezes import name_lost_term
from dpflow.ledger.decisions.gates import gates_text, population_of
from dpflow.ledger.decisions.lifetimes import TermView, view_of
from dpflow.ledger.requests import Request
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.rows import Dataset, Source, Term
from dpflow.policy import Policy
from dpflow.policy.lifetime import promise_of
from dpflow.policy.pinned import difference_lines

FIRST = "first decision"
UNCHARGED = "nothing was charged before"
#: Reasons of terms that a step opened; the next file may replace such a term until it
#: is charged.
BY_ITSELF = (FIRST, UNCHARGED)


def agrees(term: Term, policy: Policy) -> bool:
    """Return True if a file declares what the ledger has pinned."""
    if term.fields["declared"] == declaration_of(policy):
        return True
    return canonical(term.fields["pinned"]) == canonical(pins_of(policy))


@by_identity
def pins_of(policy: Policy) -> dict[str, Any]:
    """Return what a term pins of a file, with solved numbers."""
    before_solving(lambda: pins_of(policy))
    return policy.to_pinned()


@by_identity
def declaration_of(policy: Policy) -> dict[str, Any]:
    """Return what a file declares."""
    return policy.to_declared()


def fields_of(policy: Policy) -> dict[str, Any]:
    """Return what the term of a file is opened with."""
    pins = pins_of(policy)
    promise = promise_of(pins, declaration_of(policy), gates_text(pins))
    return {"pinned": pins, **promise}


def view_policy(policy: Policy, number: int = 1) -> TermView:
    """Return a file as a term."""
    return view_of({"number": number, **fields_of(policy)})


def may_be_replaced(rows: Rows, term: Term) -> bool:
    """Return True if a step with the next file may replace an uncharged term.

    It replaces neither a term that a person applied nor one of a frozen dataset, nor
    one after a charged term: a repair may charge an older term later.
    """
    wholes = (f"{term.book}#{number}" for number in range(term.number, 0, -1))
    by_itself = term.fields["reason"] in BY_ITSELF
    is_open = rows.book(term.book).frozen is None
    return by_itself and is_open and not any(map(rows.account, wholes))


def is_behind(rows: Rows, term: Term) -> bool:
    """Return True if an older term was charged since a step opened this one."""
    if rows.account(term.root) is not None or term.fields["reason"] not in BY_ITSELF:
        return False
    older = (f"{term.book}#{number}" for number in range(1, term.number))
    return any(map(rows.account, older))


class TermChange(NamedTuple):
    """A term that is opened or tightened.

    Attributes:
        kind: Kind of the entry: "open", "tighten" or "access".
        dataset: The dataset's row before.
        term: The term.
        body: Body of the entry.
        source: Statement and row of the source that the term claims.
    """

    kind: str
    dataset: Dataset
    term: Term
    body: dict[str, Any]
    source: tuple[str, Row] | None = None

    @property
    def after(self) -> Dataset:
        """The dataset's row with the term, before the entry."""
        flows = () if self.kind == "open" else self.dataset.flows
        return self.dataset._replace(
            term=self.term.number, revision=self.term.entry, flows=flows
        )


def write_term(decision: Decision, change: TermChange) -> None:
    """Write a term with its entry."""
    if change.source is not None:
        decision.changes.append(change.source)
    decision.changes.append(("put_term", change.term))
    provenance = decision.author.provenance
    body = {**provenance, **change.body, "term": change.term.fields}
    decision.append(change.after, change.kind, body=body)


def check_populations(request: Request) -> None:
    """Refuse a request without the populations of its datasets.

    Raises:
        ConfigurationError: If populations are missing.
    """
    policies = request.policies
    needed = {population_of(p) for p in policies if p.population is not None}
    charged = {policy.dataset for policy in request.populations}
    if needed != charged:
        msg = (
            f"the datasets {', '.join(request.datasets)} belong to the populations "
            f"{sorted(map(str, needed))}, and the request charges {sorted(charged)}"
        )
        raise ConfigurationError(msg)


def find_term(rows: Rows, policy: Policy, author: Author) -> Term | TermChange:
    """Return the term under which a step is decided, or the one that it opens.

    Raises:
        PolicyChanged: If the file differs from the copy that governs.
        PolicyNotApplied: If there is no copy, and a person has to apply it; or if a
            repair charged an older term since a step opened this one.
    """
    term, name, problem = rows.newest(policy.dataset), policy.dataset, ""
    applies = author.applies and policy.pin == "step"
    if term is not None and agrees(term, policy):
        if not is_behind(rows, term):
            return term
        problem = (
            f"a repair charged an older term of dataset {name!r} since a step opened "
            f"term {term.number}. The step did not run. Run `dpflow policy apply "
            f"{name} --new-term --reason TEXT`, which checks the lifetime."
        )
    elif term is not None and not (applies and may_be_replaced(rows, term)):
        raise _refuse_changed_policy(term, policy)
    elif term is None and rows.book(name).frozen is not None:
        problem = (
            f"dataset {name!r} is frozen, because its terms were lost. The step did "
            f"not run. Run `dpflow policy apply {name} --new-term --raise-lifetime "
            "--reason TEXT`."
        )
    elif not applies:
        problem = (
            f"the ledger has not applied the policy of dataset {name!r}. An operator "
            f"has to run `dpflow policy apply {name}`. The step did not run."
        )
    if problem:
        raise PolicyNotApplied(problem, dataset=name)
    return open_term(rows, policy, author, FIRST if term is None else UNCHARGED)


def open_term(rows: Rows, policy: Policy, author: Author, reason: str) -> TermChange:
    """Return the next term of a dataset.

    Args:
        rows: Rows of the ledger.
        policy: The file.
        author: Who sends the command.
        reason: Why.
    """
    dataset = rows.book(policy.dataset)
    # It goes on behind a term that was lost.
    newest = max(dataset.term, name_lost_term(rows, dataset.name))
    signed = {"reason": reason, "at": author.at, "by": author.writer}
    fields = {"number": newest + 1, **fields_of(policy), **signed}
    return pin_term(rows, policy, "open", fields, reason)


def pin_term(
    rows: Rows, policy: Policy, kind: str, fields: Mapping[str, Any], reason: str
) -> TermChange:
    """Return the change of a term to the copy of a policy's file.

    Args:
        rows: Rows of the ledger.
        policy: The file.
        kind: Kind of the entry: "open", "tighten" or "access".
        fields: What its file does not declare: the copy with solved numbers as
            `pinned`, and gates, which stay where the copy has none; a share that the
            copy no longer has stays for a flow without access.
        reason: Why.
    """
    pins, before = fields["pinned"], rows.newest(policy.dataset)
    shuts = policy.other_flows == "refuse"
    stay = {
        path: gate
        for path, gate in fields.get("gates", {}).items()
        if shuts or path.partition("/")[0] != "flow"
    }
    pinned_copy = {
        **fields,
        "declared": declaration_of(policy),
        "about": dict(policy.about),
        "policy_hash": digest(canonical(pins)),
        "gates": {**stay, **gates_text(pins)},
    }
    revision = 1 if kind == "open" or before is None else before.entry + 1
    term = Term(policy.dataset, fields["number"], revision, pinned_copy)
    body = {"reason": reason, "policy": pinned_copy["policy_hash"]}
    source = claim_source(rows, policy)
    return TermChange(kind, rows.book(policy.dataset), term, body, source)


def claim_source(rows: Rows, policy: Policy) -> tuple[str, Row] | None:
    """Return the statement and row by which a policy claims its source.

    Under two names the same data would have two budgets. Datasets of one population
    are capped together.

    Raises:
        ConfigurationError: If another dataset of this ledger spends it already.
    """
    if policy.source is None:
        return None
    source = Source(policy.source, policy.dataset, policy.population)
    for dataset, population in sorted(rows.claims.get(source.name, {}).items()):
        together = population and population == policy.population
        if dataset != policy.dataset and not together:
            msg = (
                f"the policy of dataset {policy.dataset!r} names the source "
                f"{policy.source!r} of {dataset!r}: under two names the same data "
                f"would have two budgets. Go on with {dataset!r}, or let one "
                "population cap both. The policy was not applied."
            )
            raise ConfigurationError(msg)
    before = rows.sources.get(source.name)
    if before is None and source.name in rows.claims:
        return "insert_source", source
    if before is None or before.dataset != policy.dataset or before == source:
        return None
    return "update_source", source


def _refuse_changed_policy(term: Term, policy: Policy) -> PolicyChanged:
    differences = difference_lines(term.fields["declared"], policy.to_declared())
    msg = (
        f"the policy of dataset {policy.dataset!r} is not the one that the ledger has "
        f"applied (term {term.number}): {'; '.join(differences)}. The ledger's copy "
        f"governs: undo the edit, or see `dpflow policy diff {policy.dataset}`, which "
        "says what applying it would do. The step did not run."
    )
    return PolicyChanged(msg, dataset=policy.dataset, differences=differences)
