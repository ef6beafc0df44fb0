"""Two versions of a project, as git and the working tree hold them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpflow.exceptions import ConfigurationError

_SECONDS = 120
#: What repositories without a remote call the branch that changes are merged into.
_USUAL = ("main", "master")
#: A blob's line is `<id> <type> <size>`; others say that there is none.
_PARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """The files of one version that matter here.

    Attributes:
        title: What to call it.
        policies: Policy files by path, from the repository's root.
        code: Python files by path.
        lock: The pinned ledger; None if none is pinned.
    """

    title: str
    policies: Mapping[str, str]
    code: Mapping[str, str]
    lock: str | None


def versions(
    policies: Path, *, base: str | None, head: str | None, root: Path
) -> tuple[Version, Version]:
    """Return the version that a change began from, and the changed one.

    Args:
        policies: The folder of the policies.
        base: A branch or commit. The change began where it branched off from there.
            None is the branch that the remote begins with, or main, or master.
        head: A branch or commit; None is the working tree, untracked files included.
        root: The project's root.

    Raises:
        ConfigurationError: If git is missing, or does not know what was named.
    """
    top = _top(root)
    try:
        place = policies.resolve().relative_to(top.resolve()).as_posix()
    except ValueError:
        msg = f"the policies in {policies} are not in the repository {top}"
        raise ConfigurationError(msg) from None
    changed = None if head is None else _commit(top, head)
    base = _usual_base(top) if base is None else base
    begun = _commit(top, base)
    common = _git_or_none(top, "merge-base", begun, changed or "HEAD")
    if common is not None:
        begun = common.decode().strip()
    before = _of_commit(top, begun, place, f"{base} ({begun[:8]})")
    if changed is None:
        return before, _of_tree(top, place)
    return before, _of_commit(top, changed, place, f"{head} ({changed[:8]})")


def _top(root: Path) -> Path:
    """Return the folder of the repository that a project is in."""
    found = _git_or_none(root, "rev-parse", "--show-toplevel")
    if found is None:
        msg = (
            f"`dpflow preview` compares with git, and {root} is in no git repository "
            "with files: run `git init` and commit, or go to where the project is."
        )
        raise ConfigurationError(msg)
    return Path(found.decode().strip())


def _usual_base(top: Path) -> str:
    """Return the branch that changes are merged into, as far as git tells."""
    head = _git_or_none(top, "rev-parse", "--abbrev-ref", "origin/HEAD")
    remote = "" if head is None else head.decode().strip()
    for name in (remote, *_USUAL):
        if name and _known(top, name) is not None:
            return name
    msg = (
        "git knows no branch to compare with: neither the remote's, nor "
        f"{' or '.join(_USUAL)}. Name one with --base (and fetch it first)."
    )
    raise ConfigurationError(msg)


def _known(top: Path, name: str) -> bytes | None:
    return _git_or_none(
        top,
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        f"{name}^{{commit}}",
    )


def _commit(top: Path, name: str) -> str:
    found = _known(top, name)
    if found is None:
        msg = (
            f"git knows no commit {name[:80]!r}. Fetch it first (a shallow clone in CI "
            "needs `fetch-depth: 0`), or name another with --base."
        )
        raise ConfigurationError(msg)
    return found.decode().strip()


def _of_commit(top: Path, commit: str, place: str, title: str) -> Version:
    names = _split(_git(top, "ls-tree", "-r", "-z", "--name-only", commit))
    wanted = [name for name in names if _kind(name, place) is not None]
    asked = "".join(f"{commit}:{name}\n" for name in wanted if "\n" not in name)
    found = _git(top, "cat-file", "--batch", input_=asked.encode())
    contents = _blobs(found, [name for name in wanted if "\n" not in name])
    return _version(contents, place, title)


def _of_tree(top: Path, place: str) -> Version:
    names = _split(
        _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    )
    wanted = (name for name in dict.fromkeys(names) if _kind(name, place) is not None)
    contents = {
        name: data for name in wanted if (data := _content(top / name)) is not None
    }
    return _version(contents, place, "the working tree")


def _content(path: Path) -> bytes | None:
    """Return what git would keep: of a link where it points, never what is there.

    A change under review may point anywhere, and errors quote what they cannot read.
    """
    if path.is_symlink():
        return os.fsencode(path.readlink())
    return path.read_bytes() if path.is_file() else None


def _version(contents: Mapping[str, bytes], place: str, title: str) -> Version:
    texts: dict[str, dict[str, str]] = {"policy": {}, "code": {}, "lock": {}}
    for name, data in contents.items():
        kind = _kind(name, place)
        if kind is not None:
            texts[kind][name] = data.decode("utf-8", "surrogateescape")
    lock = next(iter(texts["lock"].values()), None)
    return Version(
        title=title,
        policies=texts["policy"],
        code=texts["code"],
        lock=None if lock is None else lock.strip(),
    )


def _kind(name: str, place: str) -> str | None:
    folder, _, file = name.rpartition("/")
    if folder == ("" if place == "." else place):
        if file == "ledger.lock":
            return "lock"
        if file.endswith((".yaml", ".yml")) and not file.startswith("."):
            return "policy"
    return "code" if file.endswith(".py") else None


def _blobs(found: bytes, names: list[str]) -> dict[str, bytes]:
    """Read what `git cat-file --batch` printed."""
    contents: dict[str, bytes] = {}
    place = 0
    for name in names:
        end = found.index(b"\n", place)
        parts = found[place:end].split()
        place = end + 1
        # A submodule's files are of another repository.
        if len(parts) == _PARTS and parts[1] == b"blob":
            size = int(parts[2])
            contents[name] = found[place : place + size]
            place += size + 1
    return contents


def _split(found: bytes) -> list[str]:
    names = found.decode("utf-8", "surrogateescape").split("\0")
    return [name for name in names if name]


def _git(folder: Path, *arguments: str, input_: bytes | None = None) -> bytes:
    done = _run(folder, arguments, input_)
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip()[:300]
        msg = f"git {arguments[0]} failed in {folder}: {reason}"
        raise ConfigurationError(msg)
    return done.stdout


def _git_or_none(folder: Path, *arguments: str) -> bytes | None:
    done = _run(folder, arguments, None)
    return None if done.returncode else done.stdout


def _run(
    folder: Path, arguments: tuple[str, ...], input_: bytes | None
) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("git")
    if program is None:
        msg = "`dpflow preview` compares with git, which is not installed"
        raise ConfigurationError(msg)
    try:
        return subprocess.run(  # noqa: S603 (a list of arguments, no shell)
            [program, "-C", str(folder), *arguments],
            input=input_,
            capture_output=True,
            check=False,
            # Where a hook runs this, git's variables point to another repository.
            env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        msg = f"git did not answer in {folder}: {error}"
        raise ConfigurationError(msg) from error
