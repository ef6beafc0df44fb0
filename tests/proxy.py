"""A proxy before a PostgreSQL server that loses answers on demand."""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

_PREPARED = re.compile(rb"P....([^\0]*)\0COMMIT\0", re.DOTALL)
_BOUND = re.compile(rb"B....[^\0]*\0([^\0]+)\0", re.DOTALL)
_KEY = re.compile(rb"K\0\0\0\x0c....", re.DOTALL)


class Proxy:
    """Forwards connections to a server's socket in a folder of its own.

    Set `cut` to "before" to lose the next COMMIT on its way, or to "after" to lose its
    answer; the connection ends there, and the next ones go through.

    Args:
        server: Folder of the server's socket.
        hides_process: Answer as a pooler does, with a process id of its own.
    """

    def __init__(self, server: Path, *, hides_process: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dpflow-px-"))
        self.cut: str | None = None
        self.cuts = 0
        self._target = str(server / ".s.PGSQL.5432")
        self._hides = hides_process
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.folder / ".s.PGSQL.5432"))
        self._listening.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()
        shutil.rmtree(self.folder)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                pair = _Pair(self, client, server)
                threading.Thread(target=pair.upwards, daemon=True).start()
                threading.Thread(target=pair.downwards, daemon=True).start()

    def hidden(self, data: bytes) -> bytes:
        """Return the answer to a client, with another process id if it is hidden."""
        if not self._hides:
            return data
        return _KEY.sub(b"K\0\0\0\x0c\0\0\0\x01", data)


class _Pair:
    """A client, the server, and what the client has prepared."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket
    ) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._commits: set[bytes] = set()
        self._deaf = False

    def upwards(self) -> None:
        """Forward what the client says."""
        with suppress(OSError):
            while data := self._client.recv(65536):
                if self._commits_in(data) and self._proxy.cut is not None:
                    how, self._proxy.cut = self._proxy.cut, None
                    self._proxy.cuts += 1
                    if how == "before":
                        break
                    self._deaf = True
                self._server.sendall(data)
        self._end()

    def downwards(self) -> None:
        """Forward what the server says."""
        with suppress(OSError):
            while data := self._server.recv(65536):
                if not self._deaf:
                    self._client.sendall(self._proxy.hidden(data))
                elif b"COMMIT\0" in data:
                    # The server has answered, and nobody hears it.
                    break
        self._end()

    def _commits_in(self, data: bytes) -> bool:
        self._commits |= {*_PREPARED.findall(data)} - {b""}
        bound = {*_BOUND.findall(data)}
        return b"COMMIT\0" in data or bool(bound & self._commits)

    def _end(self) -> None:
        for side in (self._client, self._server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()
