"""Programs as forks of one process that has loaded Prefect, which takes seconds.

Run alone with the number of a socket, this file is such a program: it is what its
words say, by a fork, in this process's folder and with its input and outputs.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

_MESSAGE = 65536


class Forked:
    """A program that runs in a fork, with the methods of `subprocess.Popen`.

    Args:
        control: Where the process hears what to run.
        program: The folder, the words and the environment of the program.
        streams: The descriptors of its input, its output and its errors.
    """

    def __init__(
        self, control: socket.socket, program: dict[str, Any], streams: Sequence[int]
    ) -> None:
        self._answers, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            text = json.dumps(program).encode()
            socket.send_fds(control, [text], [theirs.fileno(), *streams])
        self.pid = int(self._answers.recv(_MESSAGE))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, if it has ended."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._answers.recv(_MESSAGE) or -signal.SIGKILL)
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def serve(descriptor: int) -> None:
    """Fork for each requested program; returns in the forks only."""
    with socket.socket(fileno=descriptor) as control:
        while True:
            text, descriptors, _, _ = socket.recv_fds(control, _MESSAGE, 4)
            _reap()
            if not text:
                os._exit(0)
            if os.fork() == 0:
                break
            for each in descriptors:
                os.close(each)
    with socket.socket(fileno=descriptors[0]) as answers:
        child = os.fork()
        if child:
            # Whoever reads what the program says waits for the program only.
            for each in descriptors[1:]:
                os.close(each)
            _report_end(child, answers)
    _become(descriptors[1:], **json.loads(text))


def _reap() -> None:
    """Take leave of those that waited for programs; the time they took is counted."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _report_end(child: int, answers: socket.socket) -> None:
    """Tell the id of a program, and how it ended."""
    answers.send(str(child).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Nobody may listen any more.
    with suppress(OSError):
        answers.send(str(code).encode())
    os._exit(0)


def _become(
    streams: Sequence[int], folder: str, words: list[str], environment: dict[str, str]
) -> None:
    """Make this process what a new one in a session of its own would be."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)


def proceed() -> None:
    """Be what the words say, as Python does: `-m` a module, `-c` a text, or a file."""
    del sys.argv[0]
    how = sys.argv[0]
    sys.path.insert(0, str(Path.cwd()))
    if how == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    # Not by `runpy`: other processes look for the file of the main module.
    main = sys.modules["__main__"] = ModuleType("__main__")
    if how == "-c":
        exec(sys.argv.pop(1), vars(main))
        return
    path = Path(how).absolute()
    sys.path[0] = str(path.parent)
    main.__file__ = str(path)
    exec(compile(path.read_bytes(), path, "exec"), vars(main))


def _main() -> None:
    """Be a program that is run by a fork."""
    control = socket.socket(fileno=int(sys.argv[1]))
    program = {
        "folder": str(Path.cwd()),
        "words": sys.argv[2:],
        "environment": {**os.environ},
    }
    code = Forked(control, program, (0, 1, 2)).wait()
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    _main()
