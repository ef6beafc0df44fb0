"""Output of `dpflow policy diff --base`: text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from dpflow.policy.revisions import PolicyEdit, RevisionDiff


def markdown_parts(diff: RevisionDiff) -> Iterator[str]:
    """Return a comparison with a commit as a comment for a pull request."""
    yield f"## dpflow: {_escape(diff.base)} \N{RIGHTWARDS ARROW} working tree"
    yield from ("", f"**{_escape(_headline(diff))}**", "")
    yield from (f"- {_escape(line)}" for line in _parts(diff))


def diff_parts(diff: RevisionDiff) -> Iterator[str]:
    """Return a comparison with a commit in words."""
    yield from (f"{diff.base} -> the working tree", _headline(diff), *_parts(diff))


def _headline(diff: RevisionDiff) -> str:
    if diff.weaker:
        return f"A guarantee may be weaker: {'; '.join(diff.weaker)}."
    return "No guarantee becomes weaker."


def _parts(diff: RevisionDiff) -> Iterator[str]:
    yield from diff.problems
    for edit in diff.policies:
        if edit.verdict != "same":
            yield from _edit_parts(edit)


def _edit_parts(edit: PolicyEdit) -> Iterator[str]:
    yield f"policy of {edit.dataset}: {edit.verdict}"
    for change in edit.changes:
        why = f": {change.why}" if change.why else ""
        yield (
            f"{edit.dataset}: {change.field} {change.ledger} is now {change.file} "
            f"({change.verdict}{why})"
        )
    for when, sentence in (("before", edit.before), ("after", edit.after)):
        if sentence is not None and edit.before != edit.after:
            yield f"{edit.dataset} {when}: {sentence}"


def _escape(words: str) -> str:
    """Return text that is neither markup nor a mention in a pull request."""
    flat = " ".join(words.split())
    for letter in "\\`*_[]|":
        flat = flat.replace(letter, f"\\{letter}")
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")
