"""A preview as Markdown for a pull request, as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dpflow.contrib.preview.compare import Preview
from dpflow.contrib.preview.policies import PolicyDelta
from dpflow.contrib.preview.steps import AT_RUN_TIME, StepDelta, least
from dpflow.policy import Policy
from dpflow.policy.changes import Change

_ARROW = "\N{RIGHTWARDS ARROW}"


def headline(found: Preview) -> str:
    """Say in one line whether a guarantee may be weaker."""
    if found.weaker:
        return f"A guarantee may be weaker: {'; '.join(found.weaker)}."
    return "No guarantee becomes weaker."


def markdown(found: Preview) -> str:
    """Write a preview as a comment on a pull request."""
    lines = [f"## dpflow: {_escaped(found.base)} {_ARROW} {_escaped(found.head)}", ""]
    lines += [f"**{_escaped(headline(found))}**", ""]
    policies = [each for each in found.policies if each.verdict != "same"]
    if policies:
        lines += ["### Policies", ""]
        for policy in policies:
            lines += _policy_markdown(policy)
    steps = [each for each in found.steps if each.shown]
    if steps:
        lines += ["### Steps", ""]
        head = ("step", "dataset", "cost", "fit the whole budget", "fit now", "note")
        lines += [_row(head), _row(["---"] * len(head))]
        lines += [_row(_step_cells(step)) for step in steps]
        lines.append("")
    lines += [f"- {_escaped(text)}" for text in _remarks(found)]
    return "\n".join(lines).strip() + "\n"


def text(found: Preview) -> list[str]:
    """Write a preview for a terminal, line by line."""
    lines = [f"{found.base} -> {found.head}", headline(found)]
    for policy in found.policies:
        if policy.verdict == "same":
            continue
        lines += ["", f"policy of {policy.dataset}: {policy.verdict}"]
        lines += [f"  {_change(change)}" for change in policy.changes]
        lines += [f"  {when}: {said}" for when, said in _guarantees(policy)]
    for step in found.steps:
        if not step.shown:
            continue
        where = f"{step.place.file}:{step.place.line}"
        lines += ["", f"step {step.name} ({where}): {step.status}"]
        lines += [f"  {note}" for note in step.notes]
        whole, now = _counts(step, "->"), _counts(step, "->", now=True)
        if whole:
            lines.append(
                f"  fit the whole budget: {whole}{f'; now: {now}' if now else ''}"
            )
    return [*lines, "", *_remarks(found)]


def data(found: Preview) -> dict[str, Any]:
    """Return a preview for programs."""
    return {
        "base": found.base,
        "head": found.head,
        "weaker": found.weaker,
        "lock": found.lock,
        "problems": list(found.problems),
        "ledger_not_read": found.ledger,
        "policies": [_policy_json(each) for each in found.policies],
        "steps": [_step_json(each) for each in found.steps],
    }


def _remarks(found: Preview) -> Iterator[str]:
    same = sum(not step.shown for step in found.steps)
    yield from found.problems
    if same:
        yield "1 step is as it was" if same == 1 else f"{same} steps are as they were"
    if not found.steps:
        yield "no steps were found: a step is a function under @dp_task or @guarded"
    if found.ledger is not None:
        yield f"nothing is said of what fits now: {found.ledger}"
    elif any("-" in _counts(step, " ", now=True).split() for step in found.steps):
        yield "what fits now is not known (-) where the change opens a new term"
    yield (
        "Nothing was run. Costs are read where they are written out; a step fits if "
        "all gates admit it that its policy and its flow give it."
    )


def _guarantees(policy: PolicyDelta) -> Iterator[tuple[str, str]]:
    before, after = (_said(each) for each in (policy.before, policy.after))
    if before == after:
        yield "guarantee", before
        return
    if policy.before is not None:
        yield "before", before
    if policy.after is not None:
        yield "after", after


def _said(policy: Policy | None) -> str:
    return "" if policy is None else policy.guarantee_sentence()


def _change(change: Change) -> str:
    why = f": {change.why}" if change.why else ""
    return (
        f"{change.field} {change.ledger} is now {change.file} ({change.verdict}{why})"
    )


def _policy_markdown(policy: PolicyDelta) -> Iterator[str]:
    yield f"**{_code(policy.dataset)}: {policy.verdict}**"
    yield ""
    yield from (f"- {_escaped(_change(change))}" for change in policy.changes)
    yield from (f"- {when}: {_escaped(said)}" for when, said in _guarantees(policy))
    yield ""


def _step_cells(step: StepDelta) -> list[str]:
    found = step.place
    costs = [each.text or "-" for each in (step.before, step.after) if each is not None]
    shown = f" {_ARROW} ".join(_code(each) for each in dict.fromkeys(costs))
    # The table has a column for costs.
    notes = [note for note in step.notes if not note.startswith("cost ")]
    notes = [*([step.status] if step.status != "same" else []), *notes]
    return [
        f"{_code(step.name)}<br>{_code(f'{found.file}:{found.line}')}",
        _escaped(", ".join(found.datasets) or AT_RUN_TIME),
        shown,
        _counts(step, _ARROW),
        _counts(step, _ARROW, now=True),
        "<br>".join(_escaped(note) for note in notes),
    ]


def _counts(step: StepDelta, arrow: str, *, now: bool = False) -> str:
    """Write how often a step fits, before and after, where it differs."""
    pair = [
        ("-" if (count := least(fits, now=now)) is None else str(count))
        for version, fits in (
            (step.before, step.fits_before),
            (step.after, step.fits_after),
        )
        if version is not None
    ]
    return "" if set(pair) == {"-"} else f" {arrow} ".join(dict.fromkeys(pair))


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(words: str) -> str:
    """Write a name that others chose, so that it stays one cell and no markup."""
    flat = " ".join(words.split()).replace("`", "'").replace("|", "\\|")
    return f"`{flat}`" if flat else ""


def _escaped(words: str) -> str:
    """Write text that others chose, so that it is neither markup nor a mention."""
    flat = " ".join(words.split())
    for letter in "\\`*_[]|":
        flat = flat.replace(letter, f"\\{letter}")
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")


def _policy_json(policy: PolicyDelta) -> dict[str, Any]:
    return {
        "dataset": policy.dataset,
        "verdict": policy.verdict,
        "weaker": policy.weaker,
        "changes": [
            {
                "field": change.field,
                "before": change.ledger,
                "after": change.file,
                "verdict": change.verdict,
                "why": change.why,
            }
            for change in policy.changes
        ],
        "guarantee_before": _said(policy.before) or None,
        "guarantee_after": _said(policy.after) or None,
    }


def _step_json(step: StepDelta) -> dict[str, Any]:
    found = step.place
    return {
        "step": step.name,
        "status": step.status,
        "file": found.file,
        "line": found.line,
        "datasets": list(found.datasets),
        "flows": list(found.flows),
        "cost_before": None if step.before is None else step.before.text or None,
        "cost_after": None if step.after is None else step.after.text or None,
        "fits_before": [asdict(fit) for fit in step.fits_before],
        "fits_after": [asdict(fit) for fit in step.fits_after],
        "notes": list(step.notes),
    }
