"""Four eyes: where a policy names officers, one who did not write it applies it.

This is a record and a check against haste, not access control: whoever can write to
the ledger can also say to be someone else. Roles of the database keep people out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpflow.exceptions import PolicyNotApplied
from dpflow.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """Who applies a policy, and who wrote it.

    Attributes:
        principal: Who applies it.
        authors: All names of who wrote it; empty if nobody knows.
    """

    principal: str
    authors: tuple[str, ...] = ()

    def facts(self) -> Mapping[str, Any]:
        """Return what the journal keeps."""
        return {"who": self.principal, "authors": list(self.authors)}

    def check(self, policy: Policy, officers: tuple[str, ...]) -> None:
        """Refuse an application that the officers do not carry.

        Raises:
            PolicyNotApplied: If officers are named, and this is none or the author.
        """
        if not officers:
            return
        check_officer(officers, policy.dataset, self.principal, "apply its policy")
        mine = _names(self.principal)
        if not self.authors:
            reason = (
                "git does not know who wrote the policy as it is now: commit the file, "
                "or name its author with --author"
            )
        elif any(mine & _names(author) for author in self.authors):
            reason = (
                f"{self.principal!r} wrote it. Ask another officer "
                f"({', '.join(officers)}), who sets DPFLOW_PRINCIPAL"
            )
        else:
            return
        msg = (
            f"the policy of dataset {policy.dataset!r} names officers, so that someone "
            f"else than its author applies it, and {reason}."
        )
        raise PolicyNotApplied(msg, dataset=policy.dataset)


def check_officer(
    officers: tuple[str, ...], dataset: str, principal: str, to: str
) -> None:
    """Refuse what only an officer may do; without officers anyone may.

    Raises:
        PolicyNotApplied: If officers are named and this is none of them.
    """
    if officers and principal not in officers:
        msg = (
            f"only an officer of dataset {dataset!r} may {to}: "
            f"{', '.join(officers)}. You are {principal!r}; an officer sets "
            "DPFLOW_PRINCIPAL."
        )
        raise PolicyNotApplied(msg, dataset=dataset)


def _names(person: str) -> set[str]:
    """Return the ways in which a person may be written; an address by its name, too."""
    # One name may be encoded in several ways, and spaced.
    name = " ".join(unicodedata.normalize("NFKC", person).casefold().split())
    return {name, name.partition("@")[0]}
