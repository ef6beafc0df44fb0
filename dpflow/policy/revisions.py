"""Comparison of a project's policies with a commit in git, for reviews and CI.

User code is neither run nor read, and the ledger is not opened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dpflow.exceptions import ConfigurationError, PolicyError
from dpflow.interrupts import without_interrupts
from dpflow.policy.changes import Change, Verdict, judge, overall
from dpflow.policy.files import is_policy_file, read_policies
from dpflow.policy.model import Policy
from dpflow.policy.strict_yaml import parse_document

_LOCK = "ledger.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEdit:
    """One dataset's policy in both revisions.

    Attributes:
        dataset: Name of the dataset.
        verdict: Effect of all changes on the guarantee.
        changes: Fields that differ.
        before: Sentence of the guarantee at the base; None for a new policy.
        after: The same in the working tree; None for a removed policy.
    """

    dataset: str
    verdict: Verdict | Literal["same", "new", "removed"]
    changes: tuple[Change, ...]
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionDiff:
    """Difference between the policies of a commit and of the working tree.

    Attributes:
        base: Name and id of the commit.
        policies: One edit per dataset.
        lock: State of `ledger.lock`: "same", "new", "changed" or "removed".
        problems: Policy files that cannot be read.
    """

    base: str
    policies: tuple[PolicyEdit, ...]
    lock: str
    problems: tuple[str, ...]

    @property
    def weaker(self) -> list[str]:
        """Reasons why a guarantee may be weaker; empty if there are no such reasons."""
        reasons = ["a policy file cannot be read"] * bool(self.problems) + [
            f"the policy of {edit.dataset} is {edit.verdict}"
            for edit in self.policies
            if edit.verdict in ("looser", "other", "removed")
        ]
        if self.lock in ("changed", "removed"):
            why = "another ledger lacks the charges of this one"
            reasons.append(f"the pin of the ledger is {self.lock}; {why}")
        return reasons


def compare_with_commit(folder: Path, base: str) -> RevisionDiff:
    """Compare the policies in a folder with those of a commit.

    Args:
        folder: Folder of the policies, in a git repository.
        base: Branch or commit. The comparison starts at its merge base with HEAD.

    Raises:
        ConfigurationError: If git is missing, the folder is in no repository, or git
            does not know the commit.
    """
    commit = _commit(folder, base)
    old, new = _files_of_commit(folder, commit), _files_of_folder(folder)
    problems: list[str] = []
    before = _policies(old, f"{base} ({commit[:8]})", problems)
    after = _policies(new, "the working tree", problems)
    return RevisionDiff(
        base=f"{base} ({commit[:8]})",
        policies=tuple(_edits(before, after)),
        lock=_lock_state(old.get(_LOCK), new.get(_LOCK)),
        problems=tuple(problems),
    )


def _policies(
    files: Mapping[str, bytes], title: str, problems: list[str]
) -> dict[str, Policy]:
    texts = {Path(k): v for k, v in sorted(files.items()) if k != _LOCK}
    result = list(read_policies(texts, lambda p: parse_document(texts[p], str(p))))
    problems += [
        f"{title}: {e.message}" for _, e in result if isinstance(e, PolicyError)
    ]
    return {p.dataset: p for _, p in result if isinstance(p, Policy)}


def _edits(
    before: Mapping[str, Policy], after: Mapping[str, Policy]
) -> Iterator[PolicyEdit]:
    """Yield one edit per dataset; every flow counts as charged."""
    for dataset in sorted(before.keys() | after.keys()):
        old, new = before.get(dataset), after.get(dataset)
        changes = judge(old.described(), new.described()) if old and new else ()
        yield PolicyEdit(
            dataset=dataset,
            verdict="new" if old is None else overall(changes) if new else "removed",
            changes=changes,
            before=old.guarantee_sentence() if old else None,
            after=new.guarantee_sentence() if new else None,
        )


def _lock_state(old: bytes | None, new: bytes | None) -> str:
    if old is None or new is None:
        return "same" if old == new else "new" if old is None else "removed"
    return "same" if old.strip() == new.strip() else "changed"


def _is_read(name: str) -> bool:
    return name == _LOCK or is_policy_file(name)


def _files_of_folder(folder: Path) -> dict[str, bytes]:
    """Read a folder as git would keep it: the target of a link, not its content.

    A change under review may link anywhere, and errors quote what they cannot parse.
    """
    return {
        path.name: os.fsencode(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in folder.iterdir()
        if _is_read(path.name) and (path.is_symlink() or path.is_file())
    }


def _files_of_commit(folder: Path, commit: str) -> dict[str, bytes]:
    listing = git(folder, "ls-tree", "-z", commit) or b""
    files: dict[str, bytes] = {}
    for line in listing.split(b"\0"):
        meta, _, path = line.partition(b"\t")
        name = path.decode("utf-8", "surrogateescape")
        if meta.split()[1:2] == [b"blob"] and _is_read(name):
            blob = meta.split()[2].decode()
            files[name] = git(folder, "cat-file", "blob", blob) or b""
    return files


def _commit(folder: Path, base: str) -> str:
    """Return the id of the commit at which the change began."""
    if git(folder, "rev-parse", "--show-toplevel") is None:
        msg = f"{folder} is missing, or in no git repository. Restore or commit it."
        raise ConfigurationError(msg)
    name = f"{base}^{{commit}}"
    result = git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
    if result is None:
        msg = f"git knows no commit {base[:80]!r}. Fetch it (CI: `fetch-depth: 0`)."
        raise ConfigurationError(msg)
    commit = result.decode().strip()
    common = git(folder, "merge-base", commit, "HEAD")
    return commit if common is None else common.decode().strip()


def git(folder: Path, *arguments: str, seconds: float = 120) -> bytes | None:
    """Return the output of a git command in a folder; None if the command failed.

    Raises:
        ConfigurationError: If git is not installed, or does not answer in time.
    """
    program = shutil.which("git")
    if program is None:
        msg = "git is not installed. Install git, and try again."
        raise ConfigurationError(msg)
    try:
        done = subprocess.run(  # noqa: S603 (a list of arguments, no shell)
            [program, "-C", str(folder), *arguments],
            capture_output=True,
            check=False,
            # Inside a git hook, these variables point to another repository.
            env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
            timeout=seconds,
        )
    except without_interrupts(OSError, subprocess.SubprocessError) as error:
        msg = f"git did not answer in {folder}: {error}. Try again."
        raise ConfigurationError(msg) from error
    return None if done.returncode else done.stdout
