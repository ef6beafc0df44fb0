"""Withdrawal of a release: its value is deleted; its digest and its charge stay."""

from __future__ import annotations

from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.freezes import name_entries
from dpflow.ledger.tables.loaded import Rows


def decide_withdrawal(
    rows: Rows, digest: str | None, reason: str, author: Author
) -> Decision:
    """Delete the value of a release; the answer is whether there was one."""
    release = rows.release
    if rows.sent:
        return Decision(answer=True, earlier=name_entries(rows))
    if release is None or release.value is None:
        return Decision(answer=False)
    if (release.state, release.digest) != ("settled", digest):
        return Decision(answer=False)
    decision = Decision(author, answer=True)
    withdrawn = release._replace(state="withdrawn", value=None)
    decision.changes.append(("put_release", withdrawn))
    stated = {"release": release.key, "digest": digest, "reason": reason}
    decision.append(
        rows.book(release.dataset),
        "withdraw",
        body={**author.provenance, **stated},
        about=(release.charge, release.step, None, None),
    )
    return decision
