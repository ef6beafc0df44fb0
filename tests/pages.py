"""Runs a page of the documentation as its reader would, in an empty folder.

A block after a line that ends in "`name`:" is a file. A `console` block is a terminal:
each line after `$ ` is a command, what follows is its output, where `...` stands for
anything; `# exit code N` ends a command that must fail so. Other blocks show something
and are not run, but Python is: a block without a name runs alone.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.forks import Forked
from tests.projects import ROOT

_BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n+^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NAME = re.compile(r"`(?P<name>[\w./-]+\.\w+)`[^`]*:$")
#: What a page leaves out of an output.
_SKIPPED = re.compile(r"(\\ )?\\\.\\\.\\\.(\\ )?")
_EXIT = re.compile(r"\s+# exit code (\d+)$")
_SECONDS = 180


@dataclass(frozen=True)
class Block:
    """One block of a page.

    Attributes:
        language: As the page names it.
        text: What it holds.
        name: The file that it is, if any.
    """

    language: str
    text: str
    name: str | None


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page in their order."""
    for match in _BLOCK.finditer("\n" + page):
        name = _NAME.search(match["before"].rstrip())
        yield Block(match["language"], match["text"], name and name["name"])


#: Loads what takes seconds; programs are forks of it. Prefect reads the settings of
#: others than pages anew, and no program takes time to remove what it has loaded.
_SERVING = """
import atexit, os, sys, warnings
code = 1

def end():
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

atexit.register(end)
import gc
import dpflow.cli, prefect.server.api.server, tests.prefect.matrix.programs, uvicorn
from prefect.context import refresh_global_settings_context
from prefect.logging.configuration import setup_logging
from tests import forks

def variables():
    return {{name: os.environ[name] for name in os.environ if "PREFECT_" in name}}

loaded = variables()
gc.freeze()
forks.serve({descriptor})
if variables() != loaded:
    refresh_global_settings_context()
    setup_logging(incremental=False)
if "PYTHONWARNINGS" in os.environ:
    warnings.simplefilter(os.environ["PYTHONWARNINGS"])
try:
    forks.proceed()
    code = 0
except SystemExit as ended:
    code = ended.code if isinstance(ended.code, int) else bool(ended.code)
    raise
"""
#: Python; a fork of one that has loaded dpflow, for commands and programs of Prefect.
_PYTHON = """#!/bin/sh
set -- {words} "$@"
case "$PROGRAMS:$1:$2" in
[0-9]*:*.py:*) grep -qE "dp_flow|dp_task|prefect" "$1" && forks=yes ;;
[0-9]*:-m:dpflow) forks=yes ;;
esac
[ -z "$forks" ] || exec "{python}" -IS "{forks}" "$PROGRAMS" "$@"
exec "{python}" "$@"
"""
_FORKS = str(ROOT / "tests" / "forks.py")
_PROGRAMS = {"python": "", "dpflow": "-m dpflow", "prefect": "-m prefect"}


@contextmanager
def forking_process(folder: Path, **variables: str) -> Iterator[socket.socket]:
    """Run a process that has loaded dpflow and Prefect; yield what it listens to.

    Args:
        folder: An empty folder, Prefect's home for all pages.
        **variables: Further variables of all pages.
    """
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    environment = {**_kept(), **_VARIABLES, "PREFECT_HOME": str(folder), **variables}
    # All forks would ignore warnings.
    del environment["PYTHONWARNINGS"]
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-c", _SERVING.format(descriptor=theirs.fileno())],
            env=environment,
            pass_fds=(theirs.fileno(),),
            # As those of its forks: no files.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ),
    ):
        theirs.close()
        yield ours
        ours.shutdown(socket.SHUT_RDWR)


def fork_program(
    world: dict[str, str],
    words: list[str],
    folder: Path,
    log: str,
    environment: dict[str, str],
) -> Forked:
    """Begin a fork of that process.

    Args:
        world: Variables of the pages, which name the process.
        words: Arguments of Python.
        folder: Its working directory.
        log: Name of the file in that folder to which it writes.
        environment: All of its variables.
    """
    program = {"folder": str(folder), "words": words, "environment": environment}
    with (
        Path(os.devnull).open() as none,
        (folder / log).open("ab") as output,
        socket.socket(fileno=os.dup(int(world["PROGRAMS"]))) as control,
    ):
        streams = (none.fileno(), output.fileno(), output.fileno())
        return Forked(control, program, streams)


def run_forked(
    world: dict[str, str], folder: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, as a fork, to its end."""
    return subprocess.run(
        [sys.executable, "-IS", _FORKS, world["PROGRAMS"], *words],
        cwd=folder,
        env={**os.environ, **_VARIABLES, **world, **environment},
        pass_fds=(int(world["PROGRAMS"]),),
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def run_page(page: str, folder: Path, **environment: str) -> int:
    """Do what a page says, and return how many commands and programs ran.

    Args:
        page: Its Markdown.
        folder: An empty folder.
        **environment: Variables that the page's programs see besides their own.

    Raises:
        AssertionError: If a command ends otherwise than the page says, or prints
            something else.
    """
    world = _environment(folder, environment)
    project = folder / "project"
    project.mkdir()
    ran = 0
    for number, block in enumerate(blocks(page)):
        if block.name is not None:
            path = project / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")
        elif block.language == "python":
            path = folder / f"block-{number}.py"
            path.write_text(block.text, "utf-8")
            _run(f"python {path}", None, 0, project, world)
            ran += 1
        elif block.language == "console":
            for command, output, code in _commands(block.text):
                _run(command, output, code, project, world)
                ran += 1
    return ran


def _commands(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield each command of a terminal with its output and exit code."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command = f"{command}\n{more}"
        ended = _EXIT.search(command)
        yield (_EXIT.sub("", command), output, int(ended[1]) if ended else 0)


def _run(
    command: str, output: str | None, code: int, folder: Path, world: dict[str, str]
) -> None:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=world,
        pass_fds=[int(world["PROGRAMS"])] if "PROGRAMS" in world else (),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if output else subprocess.PIPE,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    said = f"$ {command}\n{done.stdout}{done.stderr or ''}"
    assert done.returncode == code, f"exit code {done.returncode}, not {code}:\n{said}"
    if output:
        pattern = _SKIPPED.sub(".*?", re.escape(_tidy(output)))
        assert re.fullmatch(pattern, _tidy(done.stdout), re.DOTALL), (
            f"the page says otherwise:\n{said}\n--- the page:\n{output}"
        )


def _tidy(text: str) -> str:
    """Drop the colours, and where lines break: a page is as wide as its reader's."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


#: Variables of a page's programs.
_VARIABLES = {
    "PYTHONPATH": str(ROOT),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "DO_NOT_TRACK": "1",
    "PYTHONWARNINGS": "ignore",
}


def _kept() -> dict[str, str]:
    """Return what a reader has of this process's environment."""
    own = ("DPFLOW_", "PREFECT_", "XDG_", "GIT_")
    return {
        name: value for name, value in os.environ.items() if not name.startswith(own)
    }


def _environment(folder: Path, more: dict[str, str]) -> dict[str, str]:
    """Return a reader's environment: a home of its own, python and dpflow found."""
    programs = folder / "bin"
    programs.mkdir()
    for name, words in _PROGRAMS.items():
        program = programs / name
        text = _PYTHON.format(words=words, python=sys.executable, forks=_FORKS)
        program.write_text(text, "utf-8")
        program.chmod(0o755)
    return {
        **_kept(),
        **_VARIABLES,
        "PATH": f"{programs}:{more.pop('PATH', os.environ['PATH'])}",
        "HOME": str(folder),
        "PREFECT_HOME": str(folder / ".prefect"),
        "COLUMNS": "100",
        "TERM": "dumb",
        **more,
    }
