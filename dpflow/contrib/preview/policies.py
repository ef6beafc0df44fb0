"""What a change does to the policies: their guarantees, before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from dpflow.contrib.preview.git import Version
from dpflow.exceptions import PolicyError
from dpflow.policy import Policy, parse_policy
from dpflow.policy.changes import Change, judge, overall

#: Of these nobody can say that the guarantee is as strong as it was.
WEAKER = ("looser", "other", "removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDelta:
    """One policy in both versions.

    Attributes:
        verdict: What `judge` said of all changes, or "new", "removed", "same".
    """

    dataset: str
    verdict: str
    before: Policy | None
    after: Policy | None
    changes: tuple[Change, ...] = ()

    @property
    def weaker(self) -> bool:
        """Whether the guarantee may be weaker than it was."""
        return self.verdict in WEAKER


def read_policies(version: Version, problems: list[str]) -> dict[str, Policy]:
    """Return the policies of a version by dataset, and note what cannot be read."""
    found: dict[str, Policy] = {}
    for path, text in sorted(version.policies.items()):
        try:
            policy = parse_policy(text, file=PurePosixPath(path).name)
        except PolicyError as error:
            problems.append(f"{version.title}: {error.message}")
            continue
        if policy.dataset in found:
            problems.append(
                f"{version.title}: {path} governs the dataset {policy.dataset!r}, "
                "which another file governs already"
            )
        found[policy.dataset] = policy
    return found


def compare_policies(
    before: Mapping[str, Policy], after: Mapping[str, Policy]
) -> Iterator[PolicyDelta]:
    """Yield each policy that is in either version, by dataset.

    Every flow counts as charged: a review may be of a ledger that is out of reach.
    """
    for dataset in sorted(before.keys() | after.keys()):
        old, new = before.get(dataset), after.get(dataset)
        changes: tuple[Change, ...] = ()
        if old is None or new is None:
            verdict = "new" if old is None else "removed"
        else:
            changes = judge(old.declared(), new.declared())
            verdict = overall(changes)
        yield PolicyDelta(
            dataset=dataset, verdict=verdict, before=old, after=new, changes=changes
        )
