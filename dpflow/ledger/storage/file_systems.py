"""File system of a ledger, and whether a ledger may lie there.

SQLite's write-ahead log needs shared memory and locks that work between all processes
that use the file. Network file systems only seem to have them: two hosts then overwrite
each other's acknowledged charges. So a ledger there is refused.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from functools import cache
from pathlib import Path

from dpflow.ledger.storage.base import unavailable

logger = logging.getLogger("dpflow")

#: Other hosts, or the host of this virtual machine, may write there unseen. Any driver
#: in user space may be a network's, but for the overlay of a container.
_NETWORK = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|coda|davfs|drvfs|fakeowner|fhgfs|gfs2?|glusterfs|"
    r"gpfs|lustre|ncpfs|nfs[34]?|ocfs2|orangefs|osxfs|panfs|prl_fs|pvfs2|smb[23]|smbfs|"
    r"vboxsf|virtiofs|vmhgfs|wekafs|fuse(?!\.fuse-overlayfs$)(\..*)?"
)
#: Gone with the container or at the next boot, or hidden by a sandbox.
_PASSING = re.compile(r"aufs|fuse\.fuse-overlayfs|overlay|ramfs|rootfs|tmpfs|unknown")
_MOUNTINFO = Path("/proc/self/mountinfo")
_FDINFO = Path("/proc/self/fdinfo")


def mount_of(path: Path) -> tuple[str, str]:
    """Return the number and the type of the mount that holds a file or folder.

    Raises:
        OSError: If there is nothing at the path.
    """
    # O_PATH: opening and closing the file itself would drop SQLite's locks on it.
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        facts = (_FDINFO / str(descriptor)).read_text("utf-8")
        mounts = _MOUNTINFO.read_text("utf-8", "surrogateescape")
        number = re.findall(r"^mnt_id:\s*(\d+)$", facts, re.MULTILINE)[0]
        # proc_pid_mountinfo(5): number, parent, device, root, point, ... - type, ...
        kind = re.findall(rf"^{number} .*? - (\S+) ", mounts, re.MULTILINE)[0]
    except (OSError, IndexError):
        return "", "unknown"
    finally:
        os.close(descriptor)
    return number, kind


def check_place(path: Path) -> None:
    """Refuse a ledger where SQLite's locks mean nothing; warn where it cannot last.

    Args:
        path: The ledger's file, without links; it need not exist yet, its folder must.

    Raises:
        LedgerUnavailable: On a network file system, or if the file is mounted alone: a
            container that mounts only the file keeps the log beside it in its own
            layer, and loses it when it ends.
        OSError: If there is no such folder.
    """
    if not sys.platform.startswith("linux"):
        return  # other systems do not show it
    number, kind = mount_of(path.parent)
    if path.exists() and mount_of(path)[0] != number:
        what = (
            "is mounted as a single file, so the log beside it with the newest charges "
            "is kept elsewhere and would be lost. Mount the folder that holds the "
            "ledger instead."
        )
        raise unavailable(str(path), what)
    if _NETWORK.fullmatch(kind):
        what = (
            f"is on {kind}. Locks do not hold there between machines, so that charges "
            "could be lost. Put the ledger on a local disk and set DPFLOW_LEDGER_URL."
        )
        raise unavailable(str(path), what)
    if _PASSING.fullmatch(kind):
        _warn_once(path, kind)


@cache
def _warn_once(path: Path, kind: str) -> None:
    """Warn once per process and place, in one line for a terminal."""
    logger.warning(
        "the ledger %s is on a file system of type %s, gone with the container or at "
        "the next boot, and its charges with it: put it on a disk that lasts",
        path,
        kind,
    )
