"""`dpflow policy diff` and `apply`: what an edit does, and making it govern."""

# ruff: noqa: PLC0415 (`dpflow --help` must not wait for the ledger)

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from dpflow.cli.output import Answer, Part, fail, style_of
from dpflow.cli.source import project_ledger
from dpflow.notebook import Sheet, data_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dpflow.exceptions import DpflowError
    from dpflow.ledger import Proposal
    from dpflow.policy import Policy, PolicySet
    from dpflow.policy.changes import Change

_VERDICTS = {
    "tighter": "All in all the file is tighter: everything promised goes on to hold.",
    "looser": "All in all the file is looser: it would admit more than was promised.",
    "access": "The file changes access only: the guarantee of the dataset stays.",
    "other": "All in all the file makes another promise, neither tighter nor looser.",
    "neutral": "No part of the guarantee changes.",
}
_DONE = {
    "nothing": "the ledger has this copy already (term {})",
    "open": "applied as term {}",
    "replace": "applied as term {}, in place of an uncharged one",
    "tighten": "term {} was tightened in place",
    "texts": "texts of term {} were changed; its promise stays",
    "access": "access to term {} was changed; its guarantee stays",
    "new term": "term {} was opened",
}
_CLOSED = (
    "more was charged than the new limit, so nothing more is admitted. What was "
    "charged stays under the guarantee that the term was opened with."
)


class FailOn(StrEnum):
    """Verdict that fails a comparison with a commit."""

    LOOSER = "looser"


def diff(
    dataset: str | None = None,
    *,
    base: str | None = None,
    fail_on: FailOn | None = None,
    markdown: bool = False,
    as_json: bool = False,
) -> Answer:
    """Show how policy files differ from the ledger's copies, or from a commit.

    Each change is tighter, looser, access or other. Costs that changed in code since
    the charge before the last are named, too. Exit code 1 if a file differs from the
    ledger's copy. With --base the ledger is not opened, and only --fail-on sets
    the exit code.

    Example: `dpflow policy diff --base origin/main --fail-on looser`
    """
    if base is None:
        if fail_on is not None or markdown:
            msg = "--fail-on and --markdown need --base COMMIT"
            raise typer.BadParameter(msg)
        return _diff_with_ledger(dataset)
    from dpflow.cli.policy.revisions import diff_parts, markdown_parts
    from dpflow.config import settings
    from dpflow.policy.revisions import compare_with_commit

    if dataset is not None or (markdown and as_json):
        msg = "--base compares all datasets; give --markdown or --json, not both"
        raise typer.BadParameter(msg)
    result = compare_with_commit(settings().policies, base)
    parts = markdown_parts(result) if markdown else diff_parts(result)
    weaker = result.weaker
    return data_of(result) | {"weaker": weaker}, parts, not (fail_on and weaker)


def _diff_with_ledger(dataset: str | None) -> Answer:
    from dpflow.forecast.check import find_changed_costs
    from dpflow.policy import load_policies

    with project_ledger() as (result, ledger):
        policies = load_policies(result.policies)
        proposals = [ledger.propose(p) for p in _choose_policies(policies, dataset)]
        costs = {
            name: find_changed_costs(ledger, name)
            for name in (proposal.dataset for proposal in proposals)
        }
    pairs = zip(proposals, costs.values(), strict=True)
    lines = (line for pair in pairs for line in _proposal_parts(*pair))
    same = all(proposal.action == "nothing" for proposal in proposals)
    return {"datasets": proposals, "changed_costs": costs}, lines, same


def apply(
    dataset: str | None = None,
    *,
    reason: str | None = None,
    new_term: bool = False,
    raise_lifetime: bool = False,
) -> Answer:
    """Store policy files as the ledger's copies, which govern from now on.

    A policy that is tighter in every field is applied in place: tallies stay and
    limits fall. So is one that changes access only, with --reason. Any other change
    needs --new-term; the terms' budgets add up to at most the policy's lifetime.

    Example: `dpflow policy apply sales --new-term --reason "second quarter"`
    """
    from dpflow.exceptions import DpflowError
    from dpflow.policy import load_policies

    if dataset is None and new_term:
        msg = "a new term is opened for one DATASET at a time"
        raise typer.BadParameter(msg, param_hint="--new-term")
    wish = {"new_term": new_term, "raise_lifetime": raise_lifetime}
    applied: list[tuple[Policy, Proposal]] = []
    errors: list[DpflowError] = []
    with project_ledger(writes=True) as (result, ledger):
        policies = load_policies(result.policies)
        for policy in _choose_policies(policies, dataset):
            try:
                done = ledger.apply(policy, reason=reason or "", **wish)
                applied.append((policy, done))
            except DpflowError as error:
                errors.append(error)
    data = {"applied": [record for _, record in applied], "errors": errors}
    return data, _all_parts(applied, errors), not errors


def _all_parts(
    applied: Sequence[tuple[Policy, Proposal]], errors: Sequence[DpflowError]
) -> Iterator[Part]:
    for number, (policy, result) in enumerate(applied):
        yield from _say_applied(policy, result, shortly=number > 0)
    for error in errors:
        fail(error.message)


def _choose_policies(policies: PolicySet, dataset: str | None) -> list[Policy]:
    names = sorted(policies) if dataset is None else [dataset]
    return [policies.policy_for(name) for name in names]


def _proposal_parts(proposal: Proposal, costs: Sequence[str]) -> Iterator[Part]:
    yield [(proposal.dataset, "bold cyan"), f"  apply {_action_text(proposal)}"]
    if proposal.verdict in _VERDICTS:
        yield _VERDICTS[proposal.verdict], style_of(proposal.verdict)
    if proposal.changes:
        yield _changes_sheet(proposal.changes)
    texts = proposal.why, proposal.obstacle, *costs
    yield from ((text, "yellow") for text in texts if text)
    yield ""


def _action_text(proposal: Proposal) -> str:
    number = proposal.term
    return {
        "nothing": f"does nothing: the ledger has this copy (term {number})",
        "open": "pins this policy as term 1",
        "replace": f"opens term {number + 1}; nothing was charged under term {number}",
        "tighten": f"tightens term {number} in place; its tallies stay",
        "texts": f"changes texts of term {number} only; its promise stays",
        "access": f"changes access to term {number} (--reason TEXT); its tallies stay",
        "new term": f"is refused, unless --new-term --reason TEXT opens term "
        f"{number + 1} in addition to term {number}, which stays charged",
    }[_kind_of(proposal)]


def _kind_of(proposal: Proposal) -> str:
    """Return the action of a proposal, or "texts" if no part of a promise changes."""
    only_texts = proposal.action == "tighten" and proposal.verdict == "neutral"
    return "texts" if only_texts else proposal.action


def _changes_sheet(changes: Sequence[Change]) -> Sheet:
    rows = [(c.field, c.ledger, c.file, _verdict_text(c)) for c in changes]
    return Sheet(("field", "ledger", "file", "which is"), rows)


def _verdict_text(change: Change) -> str:
    return f"{change.verdict}: {change.why}" if change.why else change.verdict


def _say_applied(policy: Policy, done: Proposal, *, shortly: bool) -> Iterator[Part]:
    from dpflow.forecast.advice import advice
    from dpflow.show import guarantees as words

    text = _DONE[_kind_of(done)].format(done.term)
    yield [(policy.dataset, "bold cyan"), f"  {text}"]
    if done.changes:
        yield _changes_sheet(done.changes)
    if done.closed:
        yield f"{', '.join(done.closed)}: {_CLOSED}", "yellow"
    yield words.term_guarantee(policy.to_declared(), done.terms, shortly=shortly)
    yield words.terms_in_words(done.terms)
    for weak in advice(policy, terms=done.terms, strict=True):
        yield [("weak: " if weak.is_weak else "note: ", "bold yellow"), weak.line]
    yield ""
