"""`dpflow policy diff` and `apply`: what an edit does, and making it govern."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.options import AnyDataset
from dpflow.cli.output import AsJson, fail, say, say_json
from dpflow.cli.source import project_ledger
from dpflow.exceptions import ConfigurationError
from dpflow.notebook import plain

if TYPE_CHECKING:
    from rich.table import Table

    from dpflow.exceptions import DpflowError
    from dpflow.ledger.grants import Grant
    from dpflow.ledger.office_records import Applied, Proposal
    from dpflow.policy import Policy, PolicySet
    from dpflow.policy.changes import Change

_VERDICTS = {
    "tighter": "All in all the file is tighter: everything promised goes on to hold.",
    "looser": "All in all the file is looser: it would admit more than was promised.",
    "other": "All in all the file makes another promise, neither tighter nor looser.",
    "neutral": "No part of the guarantee changes.",
}
_DONE = {
    "nothing": "the ledger has this copy already (term {})",
    "open": "applied as term {}",
    "replace": "applied as term {}, in place of an uncharged one",
    "tighten": "term {} was tightened in place",
    "new term": "term {} was opened",
}
_CLOSED = (
    "more was charged than the new limit, so nothing more is admitted. What was "
    "charged stays under the guarantee that the term was opened with."
)
_VERDICT_STYLES = {"tighter": "green", "looser": "bold red", "other": "bold red"}


def diff(dataset: AnyDataset = None, *, as_json: AsJson = False) -> None:
    """Show how policy files differ from the ledger's copies, and what apply would do.

    Each change is tighter, looser or other. Exit code 1 if any file differs, as
    diff(1) does; 0 if the ledger has them all.

    Example: `dpflow policy diff sales`
    """
    from dpflow.ledger.office import propose
    from dpflow.policy import load_policies

    with project_ledger() as (found, ledger):
        policies = load_policies(found.policies)
        proposals = [propose(ledger, p) for p in _wanted(policies, dataset)]
    if as_json:
        say_json({"datasets": [_proposal_json(each) for each in proposals]})
    else:
        for each in proposals:
            _print_proposal(each)
    if any(each.action != "nothing" for each in proposals):
        raise typer.Exit(1)


_Because = Annotated[
    str,
    typer.Option("--because", metavar="TEXT", help="Why; the journal keeps it."),
]
_NewTerm = Annotated[
    bool,
    typer.Option(
        "--new-term", help="Open a term with tallies of its own; needs --because."
    ),
]
_RaiseLifetime = Annotated[
    bool,
    typer.Option(
        "--raise-lifetime",
        help="With --new-term: let the lifetime be raised, or a term follow one "
        "that was overdrawn. Both break what was promised of all terms together.",
    ),
]
_Author = Annotated[
    str,
    typer.Option(
        "--author",
        metavar="NAME",
        help="Who wrote the policy, where git does not know it.",
    ),
]
_Grant = Annotated[
    Path | None,
    typer.Option(
        "--grant",
        help="What `dpflow ledger carve` wrote: the part of another ledger's "
        "budget under which this one may use the source.",
    ),
]


def apply(
    dataset: AnyDataset = None,
    *,
    because: _Because = "",
    new_term: _NewTerm = False,
    raise_lifetime: _RaiseLifetime = False,
    author: _Author = "",
    grant: _Grant = None,
    as_json: AsJson = False,
) -> None:
    """Make policy files the ledger's own copies, which govern from then on.

    A policy that is tighter in every field is applied in place: tallies are kept and
    limits fall. Anything else is refused unless it is asked for as a new term; the
    terms' budgets add up to at most the policy's lifetime.

    Example: `dpflow policy apply sales --new-term --because "second quarter"`
    """
    from dpflow.exceptions import DpflowError
    from dpflow.ledger.office import apply_policy
    from dpflow.ledger.office_records import Wish
    from dpflow.policy import load_policies

    if dataset is None and (new_term or grant is not None):
        msg = "a new term is opened for one DATASET at a time"
        raise typer.BadParameter(msg, param_hint="--new-term, --grant")
    wish = Wish(
        because=because,
        new_term=new_term,
        raise_lifetime=raise_lifetime,
        grant=None if grant is None else _grant(grant),
    )
    applied: list[tuple[Policy, Applied]] = []
    errors: list[DpflowError] = []
    with project_ledger(writes=True) as (found, ledger):
        policies = load_policies(found.policies)
        principal = str(ledger.conditions.facts["who"])
        for policy in _wanted(policies, dataset):
            approval = _approval(policies, policy, principal, author)
            try:
                result = apply_policy(ledger, policy, wish, approval)
            except DpflowError as error:
                errors.append(error)
            else:
                applied.append((policy, result))
    if as_json:
        done = [_applied_json(*each) for each in applied]
        say_json({"applied": done, "errors": [_error_json(each) for each in errors]})
    else:
        for number, (policy, result) in enumerate(applied):
            _print_applied(policy, result, shortly=number > 0)
    for each in errors:
        fail(each.message)
    if errors:
        raise typer.Exit(1)


def _grant(path: Path) -> Grant:
    from dpflow.ledger.grants import grant_from_text

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"cannot read the grant {path}: {error}"
        raise ConfigurationError(msg) from error
    return grant_from_text(text)


def _wanted(policies: PolicySet, dataset: str | None) -> list[Policy]:
    if dataset is not None:
        return [policies.policy_for(dataset)]
    return [policies[name] for name in sorted(policies)]


def _approval(policies: PolicySet, policy: Policy, principal: str, author: str) -> Any:
    from dpflow.ledger.approval import Approval
    from dpflow.ledger.provenance import authors_of

    authors = authors_of(policies.source(policy.dataset)) if policy.officers else ()
    said = (author,) if author else ()
    return Approval(principal=principal, authors=(*authors, *said))


# Text


def _print_proposal(proposal: Proposal) -> None:
    from rich.text import Text

    title = (plain(proposal.dataset), "bold cyan")
    say(Text.assemble(title, f"  apply {plain(_action_text(proposal))}"))
    if proposal.verdict in _VERDICTS:
        style = _VERDICT_STYLES.get(proposal.verdict, "")
        say(Text(_VERDICTS[proposal.verdict], style=style))
    if proposal.changes:
        say(_changes_table(proposal.changes))
    for text in (proposal.why, proposal.obstacle):
        if text:
            say(Text(plain(text), style="yellow"))
    say("")


def _action_text(proposal: Proposal) -> str:
    number = 0 if proposal.term is None else proposal.term.number
    return {
        "nothing": f"does nothing: the ledger has this copy (term {number})",
        "open": "pins this policy as term 1",
        "replace": f"opens term {number + 1}; nothing was charged under term {number}",
        "tighten": f"tightens term {number} in place; its tallies are kept",
        "new term": f"is refused, unless --new-term --because TEXT opens term "
        f"{number + 1} beside term {number}, which stays charged",
    }[proposal.action]


def _changes_table(changes: tuple[Change, ...]) -> Table:
    from dpflow.cli.tables import cell, new_table

    table = new_table("field", "ledger", "file", "which is")
    for change in changes:
        why = f": {change.why}" if change.why else ""
        style = _VERDICT_STYLES.get(change.verdict, "")
        table.add_row(
            cell(change.field),
            cell(change.ledger),
            cell(change.file),
            cell(f"{change.verdict}{why}", style),
        )
    return table


def _print_applied(policy: Policy, result: Applied, *, shortly: bool) -> None:
    from rich.text import Text

    from dpflow.forecast.advice import advice
    from dpflow.show import guarantees as words

    title = (plain(policy.dataset), "bold cyan")
    say(Text.assemble(title, f"  {_DONE[result.action].format(result.term)}"))
    if result.changes:
        say(_changes_table(result.changes))
    if result.closed:
        closed = f"{plain(', '.join(result.closed))}: {_CLOSED}"
        say(Text(closed, style="yellow"))
    say(plain(words.term_guarantee(policy.declared(), result.terms, shortly=shortly)))
    if kept := words.tightened_in_words(result.terms):
        say(plain(kept))
    say(plain(words.terms_in_words(result.terms)))
    for weak in advice(policy, terms=result.terms, strict=True):
        say(Text.assemble(("weak: ", "bold yellow"), plain(weak.line)))
    say("")


# JSON


def _proposal_json(proposal: Proposal) -> dict[str, Any]:
    return {
        "dataset": proposal.dataset,
        "term": None if proposal.term is None else proposal.term.number,
        "verdict": proposal.verdict,
        "action": proposal.action,
        "changes": [_change_json(change) for change in proposal.changes],
        "why": proposal.why or None,
        "obstacle": proposal.obstacle or None,
    }


def _change_json(change: Change) -> dict[str, str | None]:
    return {
        "field": change.field,
        "ledger": change.ledger,
        "file": change.file,
        "verdict": change.verdict,
        "why": change.why or None,
    }


def _error_json(error: DpflowError) -> dict[str, Any]:
    return {"message": error.message, "dataset": error.details.get("dataset")}


def _applied_json(policy: Policy, result: Applied) -> dict[str, Any]:
    from dpflow.show.guarantees import term_guarantee, terms_in_words
    from dpflow.show.status import term_json

    return {
        "dataset": result.dataset,
        "action": result.action,
        "term": result.term,
        "changes": [_change_json(change) for change in result.changes],
        "tightened": list(result.accounts),
        "admit_nothing_more": list(result.closed),
        "guarantee": term_guarantee(policy.declared(), result.terms),
        "terms_in_words": terms_in_words(result.terms),
        "terms": [term_json(view) for view in result.terms],
    }
