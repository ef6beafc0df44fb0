"""Which file system a ledger lies on, and whether a ledger may lie there.

SQLite's write-ahead log needs shared memory and locks that work between all who use
the file. Network file systems pretend to have them: two hosts then overwrite each
other's acknowledged charges. So a ledger there is refused.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dpflow.exceptions import LedgerUnavailable

logger = logging.getLogger("dpflow")

#: Other hosts, or the host of this virtual machine, may write there unseen. Any driver
#: in user space may be a network's, but for the overlay of a container.
NETWORK = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|coda|davfs|drvfs|fakeowner|fhgfs|gfs2?|glusterfs|"
    r"gpfs|lustre|ncpfs|nfs[34]?|ocfs2|orangefs|osxfs|panfs|prl_fs|pvfs2|smb[23]|smbfs|"
    r"vboxsf|virtiofs|vmhgfs|wekafs|fuse(?!\.fuse-overlayfs$)(\..*)?"
)
#: Gone with the container or at the next boot.
_PASSING = re.compile(r"aufs|fuse\.fuse-overlayfs|overlay|ramfs|rootfs|tmpfs")
#: Of proc_pid_mountinfo(5): id, parent, device, root, mount point, options...; type.
_LINE = re.compile(r"^(\d+) \S+ \S+ \S+ (\S+) .*? - (\S+) ", re.MULTILINE)
_MOUNTINFO = Path("/proc/self/mountinfo")
_FDINFO = Path("/proc/self/fdinfo")


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        number: The kernel's id of the mount.
        point: Where it is mounted.
        kind: The type of the file system.
    """

    number: int
    point: str
    kind: str


def parse_mounts(text: str) -> dict[int, Mount]:
    """Read the kernel's list of mounts, by their ids."""

    def plain(point: str) -> str:
        return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point)

    lines = _LINE.findall(text)
    return {int(n): Mount(int(n), plain(point), kind) for n, point, kind in lines}


def mount_of(path: Path) -> Mount | None:
    """Return the mount that holds a file or folder; None if nobody says.

    Raises:
        OSError: If there is nothing at the path.
    """
    # O_PATH: opening and closing the file itself would drop SQLite's locks on it.
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        facts = (_FDINFO / str(descriptor)).read_text("utf-8")
        mounts = _MOUNTINFO.read_text("utf-8", "surrogateescape")
    except OSError:
        # A sandbox without these files.
        return None
    finally:
        os.close(descriptor)
    number = re.search(r"^mnt_id:\s*(\d+)$", facts, re.MULTILINE)
    return None if number is None else parse_mounts(mounts).get(int(number[1]))


def check_place(path: Path, place: str) -> None:
    """Refuse a ledger where SQLite's locks mean nothing; warn where it cannot last.

    Args:
        path: The ledger's file, without links; it need not exist yet, its folder must.
        place: The ledger, for messages.

    Raises:
        LedgerUnavailable: On a network file system, or if the file is mounted alone: a
            container that mounts only the file keeps the log beside it in its own
            layer, and loses it when it ends.
        OSError: If there is no such folder.
    """
    if not sys.platform.startswith("linux"):
        # Nobody can say elsewhere, and a warning would tell nothing.
        return
    folder = mount_of(path.parent)
    if folder is None:
        _warn_once(
            path,
            "cannot tell which file system the ledger %s is on; it must be a local "
            "disk that lasts",
        )
        return
    file = mount_of(path) if path.exists() else None
    if file is not None and file.number != folder.number:
        msg = (
            f"the ledger {path} is mounted as a single file, so the log beside it with "
            "the newest charges is kept elsewhere and would be lost. Mount the folder "
            "that holds the ledger instead."
        )
        raise LedgerUnavailable(msg, ledger=place)
    if NETWORK.fullmatch(folder.kind):
        msg = (
            f"the ledger {path} is on {folder.kind}, mounted at {folder.point}. Locks "
            "do not hold there between machines, so that charges could be lost. Put "
            "the ledger on a local disk and say where in DPFLOW_LEDGER_URL."
        )
        raise LedgerUnavailable(msg, ledger=place, file_system=folder.kind)
    if _PASSING.fullmatch(folder.kind):
        _warn_once(
            path,
            "the ledger %s is on %s, gone with the container or at the next boot, and "
            "what was spent is then forgotten: put it on a disk that lasts",
            folder.kind,
        )


@cache
def _warn_once(path: Path, text: str, *details: str) -> None:
    """Warn once per process and place; one line, for people read it in a terminal."""
    logger.warning(text, path, *details)
