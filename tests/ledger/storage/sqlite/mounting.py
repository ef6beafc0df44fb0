"""Small and read-only disks for tests, and what stands for them without root."""

from __future__ import annotations

import os
import resource
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def mounted(*arguments: str, at: Path) -> bool:
    """Mount something at a folder; False, and a warning, if this user may not."""
    at.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", *arguments, str(at)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        warnings.warn(
            f"mounting is not permitted here ({done.stderr.strip()}): the test runs "
            "with its stand-in",
            stacklevel=3,
        )
    return done.returncode == 0


def unmount(at: Path) -> None:
    """Unmount a folder, even if something is still open in it."""
    subprocess.run(["umount", "--lazy", str(at)], check=True)


class Disk:
    """A small disk that can be filled up; without mounts, a limit of file sizes.

    The limit holds for the process that fills it, so that must be the one that writes.

    Args:
        folder: Where files are written.
        real: Whether a file system of its own is mounted there.
    """

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.folder = folder
        self.real = real

    def fill(self, leave: int) -> None:
        """Leave so many bytes free."""
        if self.real:
            free = os.statvfs(self.folder)
            size = free.f_bavail * free.f_bsize - leave
            with (self.folder / "ballast").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            return
        biggest = max(item.stat().st_size for item in self.folder.iterdir())
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (biggest + leave, hard))

    def free(self) -> None:
        """Make space again."""
        if self.real:
            (self.folder / "ballast").unlink()
            return
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Disk]:
    """Mount a disk of a size in memory, or say that a file size limit stands for it."""
    real = mounted("-t", "tmpfs", "-o", f"size={size}", "dpflow-test", at=folder)
    try:
        yield Disk(folder, real=real)
    finally:
        if real:
            unmount(folder)


@contextmanager
def read_only_view(folder: Path, at: Path) -> Iterator[Path | None]:
    """Mount a folder a second time, read-only; None if this user may not."""
    if not mounted("--bind", str(folder), at=at):
        yield None
        return
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(at)], check=True)
        yield at
    finally:
        unmount(at)
