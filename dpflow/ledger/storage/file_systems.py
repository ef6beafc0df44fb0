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
from dataclasses import dataclass
from pathlib import Path

from dpflow.exceptions import LedgerUnavailable

logger = logging.getLogger("dpflow")

#: Other hosts, or the host of this virtual machine, may write there unseen.
_NETWORK = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|coda|davfs|drvfs|fakeowner|fhgfs|gfs2?|glusterfs|"
    r"gpfs|lustre|ncpfs|nfs[34]?|ocfs2|orangefs|osxfs|panfs|prl_fs|pvfs2|smb[23]|smbfs|"
    r"vboxsf|virtiofs|vmhgfs|wekafs"
)
#: Any other driver in user space (fuse.*) may be a network's; fuseblk is a disk.
_LOCAL_FUSE = "fuse.fuse-overlayfs"
#: Gone with the container or at the next boot.
_PASSING = frozenset({"aufs", _LOCAL_FUSE, "overlay", "ramfs", "rootfs", "tmpfs"})

_MOUNTINFO = Path("/proc/self/mountinfo")
_FDINFO = Path("/proc/self/fdinfo")

#: Places that this process has warned of.
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system.

    Attributes:
        number: The kernel's id of the mount.
        point: Where it is mounted.
        kind: The type of the file system.
    """

    number: int
    point: str
    kind: str

    @property
    def network(self) -> bool:
        """Whether others may write there past this host's locks."""
        fuse = self.kind == "fuse" or self.kind.startswith("fuse.")
        unknown = fuse and self.kind != _LOCAL_FUSE
        return unknown or _NETWORK.fullmatch(self.kind) is not None

    @property
    def passing(self) -> bool:
        """Whether what is written there does not outlast the container or the boot."""
        return self.kind in _PASSING


def parse_mounts(text: str) -> dict[int, Mount]:
    """Read the kernel's list of mounts (proc_pid_mountinfo(5)), by their ids."""
    found = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        # id, parent, device, root, mount point, options...; type, source, options
        fields, kind = before.split(" "), after.partition(" ")[0]
        if len(fields) > 4 and fields[0].isdecimal() and kind:  # noqa: PLR2004
            number = int(fields[0])
            found[number] = Mount(number, _unescaped(fields[4]), kind)
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def mount_of(path: Path) -> Mount | None:
    """Return the mount that holds a file or folder; None if nobody says.

    Raises:
        OSError: If there is nothing at the path.
    """
    if not sys.platform.startswith("linux"):
        return None
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
        LedgerUnavailable: On a network file system, or if the file is mounted alone.
        OSError: If there is no such folder.
    """
    folder = mount_of(path.parent)
    if folder is None:
        # Elsewhere than on Linux nobody can say, and a warning would tell nothing.
        if sys.platform.startswith("linux"):
            _warn_once(
                path,
                "cannot tell which file system the ledger %s is on; it must be a local "
                "disk that lasts",
            )
        return
    _check_mounted_with_folder(path, folder, place)
    if folder.network:
        msg = (
            f"the ledger {path} is on {folder.kind}, mounted at {folder.point}. Locks "
            "do not hold there between machines, so that charges could be lost. Put "
            "the ledger on a local disk and say where in DPFLOW_LEDGER_URL."
        )
        raise LedgerUnavailable(msg, ledger=place, file_system=folder.kind)
    if folder.passing:
        _warn_once(
            path,
            "the ledger %s is on %s, gone with the container or at the next boot, and "
            "what was spent is then forgotten: put it on a disk that lasts",
            folder.kind,
        )


def _check_mounted_with_folder(path: Path, folder: Mount, place: str) -> None:
    """Refuse a file that is mounted alone: its log would lie somewhere else.

    A container that mounts only the file keeps the -wal file, with the newest charges,
    in its own layer and loses it when it ends.
    """
    try:
        file = mount_of(path)
    except FileNotFoundError:
        return
    if file is not None and file.number != folder.number:
        msg = (
            f"the ledger {path} is mounted as a single file, so the log beside it with "
            "the newest charges is kept elsewhere and would be lost. Mount the folder "
            "that holds the ledger instead."
        )
        raise LedgerUnavailable(msg, ledger=place)


def _warn_once(path: Path, text: str, *details: str) -> None:
    """Tell once per process and place; one line, for people read it in a terminal."""
    if str(path) not in _told:
        _told.add(str(path))
        logger.warning(text, path, *details)
