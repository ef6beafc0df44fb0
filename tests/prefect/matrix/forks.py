"""Programs as forks of one process that has loaded Prefect, which takes seconds."""

from __future__ import annotations

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

#: What the process runs that is forked; each of its forks goes on behind `serve`.
SERVING = """
from tests.prefect.matrix import forks, programs
forks.serve({descriptor})
forks.proceed(programs.main)
"""
_MESSAGE = 65536


class Forked:
    """A program that runs in a fork; it is asked and ended as `subprocess.Popen` is.

    Args:
        control: Where the process hears what to run.
        program: The folder, the log, the words and the environment of the program.
    """

    def __init__(self, control: socket.socket, program: dict[str, Any]) -> None:
        self._answers, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            text = json.dumps(program).encode()
            socket.send_fds(control, [text], [theirs.fileno()])
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
    """Fork whenever a program is asked for; returns in the forks only."""
    with socket.socket(fileno=descriptor) as control:
        # The kernel reaps those that wait for programs.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            text, descriptors, _, _ = socket.recv_fds(control, _MESSAGE, 1)
            if not text:
                os._exit(0)
            if os.fork() == 0:
                break
            os.close(descriptors[0])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=descriptors[0]) as answers:
        child = os.fork()
        if child:
            _tell_of(child, answers)
    _become(**json.loads(text))


def _tell_of(child: int, answers: socket.socket) -> None:
    """Tell the id of a program, and how it ended."""
    answers.send(str(child).encode())
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Nobody may listen any more.
    with suppress(OSError):
        answers.send(str(code).encode())
    os._exit(0)


def _become(folder: str, log: str, words: list[str], environment: Any) -> None:
    """Make this process what a new one in a session of its own would be."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = words
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for name, target, how in ((os.devnull, 0, os.O_RDONLY), (log, 1, flags)):
        descriptor = os.open(name, how, 0o644)
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.dup2(1, 2)


def proceed(main: Any) -> None:
    """Run a module if the words say so, as `python -m` does, else the programs."""
    if sys.argv[1:2] != ["-m"]:
        main()
        return
    del sys.argv[:2]
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
