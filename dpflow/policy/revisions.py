"""Comparison of a project's policies with a commit in git, for reviews and CI.

User code is neither run nor read, and the ledger is not opened.
"""

from __future__ import annotations

import os
import re
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
from dpflow.policy.strict_yaml import Document, parse_document, policy_error

_LOCK = "ledger.lock"
_OF_HOOK = re.compile("GIT_(?!CONFIG)")
#: Contents by name; None of a link to no file of the repository.
Files = Mapping[str, bytes | None]


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
        lock=_lock_state(old, new),
        problems=tuple(problems),
    )


def _policies(files: Files, title: str, problems: list[str]) -> dict[str, Policy]:
    paths = [Path(name) for name in sorted(files) if name != _LOCK]
    result = list(read_policies(paths, lambda path: _document(path, files[str(path)])))
    problems += [
        f"{title}: {e.message}" for _, e in result if isinstance(e, PolicyError)
    ]
    return {p.dataset: p for _, p in result if isinstance(p, Policy)}


def _document(path: Path, content: bytes | None) -> Document:
    if content is None:
        message = "this is a link to no file that git has in this repository."
        hint = "Commit the file that it names, or a copy in its place."
        raise policy_error(str(path), None, message, hint)
    return parse_document(content, str(path))


def _edits(
    before: Mapping[str, Policy], after: Mapping[str, Policy]
) -> Iterator[PolicyEdit]:
    """Yield one edit per dataset; every flow counts as charged."""
    for dataset in sorted(before.keys() | after.keys()):
        old, new = before.get(dataset), after.get(dataset)
        changes = judge(old.to_described(), new.to_described()) if old and new else ()
        yield PolicyEdit(
            dataset=dataset,
            verdict="new" if old is None else overall(changes) if new else "removed",
            changes=changes,
            before=old.guarantee_sentence() if old else None,
            after=new.guarantee_sentence() if new else None,
        )


def _lock_state(old: Files, new: Files) -> str:
    if (_LOCK in old) is not (_LOCK in new):
        return "removed" if _LOCK in old else "new"
    before, after = ((files.get(_LOCK) or b"").strip() for files in (old, new))
    return "same" if before == after else "changed"


def _is_read(name: str) -> bool:
    return name == _LOCK or is_policy_file(name)


def _files_of_folder(folder: Path) -> Files:
    """Read a folder; a link is followed to a file that git has in this repository.

    A change under review may link anywhere, and errors quote what they cannot parse.
    """
    files: dict[str, bytes | None] = {}
    for path in filter(lambda path: _is_read(path.name), folder.iterdir()):
        target = os.path.realpath(path)
        tracked = ("--literal-pathspecs", "ls-files", "--error-unmatch", "--", target)
        if path.is_symlink() and not (os.path.isfile(target) and git(folder, *tracked)):  # noqa: PTH113
            files[path.name] = None
        elif path.is_file():
            files[path.name] = path.read_bytes()
    return files


def _files_of_commit(folder: Path, commit: str) -> Files:
    """Read the same from a commit, whose links git follows."""
    files: dict[str, bytes | None] = {}
    for line in _answer(folder, "ls-tree", "-z", commit).split(b"\0"):
        meta, _, path = line.partition(b"\t")
        if meta.split()[1:2] == [b"blob"] and _is_read(name := os.fsdecode(path)):
            wanted = b"%s:./%s\n" % (commit.encode(), path)
            batch = "cat-file", "--batch", "--follow-symlinks"
            head, _, content = _answer(folder, *batch, stdin=wanted).partition(b"\n")
            is_file = head.split()[1:2] == [b"blob"]
            files[name] = content.removesuffix(b"\n") if is_file else None
    return files


def _commit(folder: Path, base: str) -> str:
    """Return the id of the commit at which the change began."""
    done = _run(folder, "rev-parse", "--show-toplevel")
    if done.returncode:
        msg = (
            f"{folder} is missing, in no git repository, or git refuses it: "
            f"{_reason(done)}. Restore or commit it, or do what git says."
        )
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
    done = _run(folder, *arguments, seconds=seconds)
    return None if done.returncode else done.stdout


def _answer(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    done = _run(folder, *arguments, stdin=stdin)
    if done.returncode:
        msg = f"`git {arguments[0]}` fails in {folder}: {_reason(done)}."
        raise ConfigurationError(msg)
    return done.stdout


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return what git wrote about its failure, on one line."""
    words = done.stderr.decode("utf-8", "replace").removeprefix("fatal: ").split()
    return " ".join(words).rstrip(".") or f"exit code {done.returncode}"


def _run(
    folder: Path, *arguments: str, stdin: bytes = b"", seconds: float = 120
) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("git")
    if program is None:
        msg = "git is not installed. Install git, and try again."
        raise ConfigurationError(msg)
    try:
        return subprocess.run(  # noqa: S603 (a list of arguments, no shell)
            [program, "-C", str(folder), *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            # Inside a git hook, these variables point to another repository.
            env={k: v for k, v in os.environ.items() if not _OF_HOOK.match(k)},
            timeout=seconds,
        )
    except without_interrupts(OSError, subprocess.SubprocessError) as error:
        msg = f"git did not answer in {folder}: {error}. Try again."
        raise ConfigurationError(msg) from error
