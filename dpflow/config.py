"""Where the ledger and the policies are: environment, pyproject.toml, defaults."""

from __future__ import annotations

import os
import stat
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError, require

LEDGER_VARIABLE = "DPFLOW_LEDGER_URL"
POLICIES_VARIABLE = "DPFLOW_POLICIES"
WITNESS_VARIABLE = "DPFLOW_WITNESS"
PEOPLE_VARIABLE = "DPFLOW_PEOPLE"
KEY_VARIABLE = "DPFLOW_LEDGER_KEY"
ENVIRONMENT_VARIABLE = "DPFLOW_ENVIRONMENT"
#: The word that does without a witness.
NO_WITNESS = "none"
#: What stands before the name of a Prefect block that holds the URL.
BLOCK_PREFIX = "prefect-block:"
#: Functions that read a URL by its prefix; `dpflow.prefect` adds the one for blocks.
url_readers: dict[str, Callable[[str], str]] = {}
_NAME_LENGTH = 200
_KEYS = ("ledger_url", "policies", "witness", "environment", "people")
_VARIABLES = (
    LEDGER_VARIABLE,
    POLICIES_VARIABLE,
    WITNESS_VARIABLE,
    ENVIRONMENT_VARIABLE,
    PEOPLE_VARIABLE,
)
#: Longer than any tick of a file system's clock.
_TICK_NS = 100_000_000

#: The id of the outermost flow run around this call, and whether it is a subflow.
_flow: ContextVar[tuple[str, bool] | None] = ContextVar("dpflow_flow", default=None)
#: The settings of this process, once a step of it has opened its project.
_of_process: list[Settings] = []

#: What tells one content of a file from another.
Stamp = tuple[Any, ...]
#: The place of the time of its last change in it.
_CHANGED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where things are.

    Attributes:
        root: The project's root: the folder of the nearest pyproject.toml above the
            working directory, else the working directory.
        ledger_url: `sqlite:////absolute/path` or `postgresql://...`, also where a
            Prefect block named it; may hold a password, so that it is never shown.
        policies: Folder of the policy files and of `ledger.lock`.
        witness: Place of the ledger's witness: a folder, `postgresql://...` of another
            database; "none" waives it, None is the default of the ledger's kind. May
            hold a password, so that it is never shown.
        environment: What this process runs in, such as "production"; None if nobody
            said. A ledger that was made for one serves no other.
        people: Folder of the stores of what each person has left; None if nobody said.
    """

    root: Path
    ledger_url: str = field(repr=False)
    policies: Path
    witness: str | None = field(default=None, repr=False)
    environment: str | None = None
    people: Path | None = None


def settings(directory: Path | None = None) -> Settings:
    """Return the settings of the current project, or read those for a directory.

    Environment variables come first, then `[tool.dpflow]` in the project's
    pyproject.toml, then the defaults `.dpflow/ledger.db` and `policies/`.

    The settings are read once: at the start of the flow run around this call,
    otherwise at the first step of the process. Until then they are those of the working
    directory.

    Args:
        directory: A folder of another project.

    Raises:
        ConfigurationError: If pyproject.toml cannot be read or has unknown keys, or if
            the working directory was removed.
    """
    if directory is not None:
        return _read(str(Path(directory).absolute()))
    if (flow := _flow.get()) is not None:
        return _of_flow(*flow)
    return _of_process[0] if _of_process else _read(_working_directory())


@contextmanager
def flow_settings(run: str, *, subflow: bool) -> Iterator[None]:
    """Keep the settings of a flow run in this block, whatever directory it works in.

    A subflow and a retry keep the settings of the first start.

    Args:
        run: Id of the flow run.
        subflow: Whether another flow run is around it.

    Raises:
        ConfigurationError: As `settings`.
    """
    token = _flow.set(_flow.get() or (run, subflow))
    try:
        settings()
        yield
    finally:
        _flow.reset(token)


def keep_settings(found: Settings) -> None:
    """Keep the settings of the first step for the whole process."""
    _of_process[:] = _of_process or [found]


def forget_settings() -> None:
    """Read the settings anew at the next use."""
    _of_process.clear()
    _of_flow.cache_clear()


@lru_cache(maxsize=1024)
def _of_flow(run: str, subflow: bool) -> Settings:  # noqa: ARG001, FBT001
    """Return the settings of a flow run; a retry gets those of the first execution."""
    if subflow and _of_process:
        return _of_process[0]
    return _read(_working_directory())


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (texts are quicker than paths)
    except OSError as error:
        msg = (
            "the project cannot be found, because the working directory was removed "
            f"or is out of reach ({error.strerror}). Change to a folder of the project."
        )
        raise ConfigurationError(msg) from error


def _read(here: str) -> Settings:
    """Read the settings for a directory."""
    root, stamp = _root(here)
    said = tuple(map(os.environ.get, _VARIABLES))
    if len(stamp) > _CHANGED and time.time_ns() - stamp[_CHANGED] < _TICK_NS:
        # It may change once more within a tick, and then have the same stamp.
        return _settings.__wrapped__(root, stamp, said)
    return _settings(root, stamp, said)


@lru_cache(maxsize=16)
def _settings(folder: str, stamp: Stamp, said: tuple[str | None, ...]) -> Settings:  # noqa: ARG001
    """Read the settings of a project; again only where one of these is another."""
    root = Path(folder)
    table = _table(root / "pyproject.toml")
    ledger, policies, witness, environment, people = (
        # A secret that `echo` wrote ends with a line end.
        (value or "").strip() or table.get(key, "").strip() or None
        for value, key in zip(said, _KEYS, strict=True)
    )
    return Settings(
        root=root,
        ledger_url=_absolute(ledger or "sqlite:///.dpflow/ledger.db", root),
        policies=root / (policies or "policies"),
        witness=_witness(witness, root),
        environment=_name(ENVIRONMENT_VARIABLE, environment),
        people=None if people is None else root / people,
    )


def _root(directory: str) -> tuple[str, Stamp]:
    """Return the project's root, and the stamp of its pyproject.toml.

    It is the nearest folder upwards that has one, else the directory itself.
    """
    folder, inner = directory, ""
    while folder != inner:
        status = _status(os.path.join(folder, "pyproject.toml"))  # noqa: PTH118
        if isinstance(status, os.stat_result) and stat.S_ISREG(status.st_mode):
            return folder, _stamp(status)
        inner, folder = folder, os.path.dirname(folder)  # noqa: PTH120
    return directory, file_stamp(os.path.join(directory, "pyproject.toml"))  # noqa: PTH118


def _witness(place: str | None, root: Path) -> str | None:
    if place in (None, NO_WITNESS) or "://" in str(place):
        return place
    return str(root / str(place))


def _name(variable: str, name: str | None) -> str | None:
    """Return a setting that is a name; `variable` is for the message."""
    text = name or ""
    require(
        text.isprintable() and len(text) <= _NAME_LENGTH,
        f"{variable}, or its entry in [tool.dpflow], must be 1 to {_NAME_LENGTH} "
        f"printable characters, got {text[:60]!r}",
    )
    return text or None


def load_prefect() -> None:
    """Load the part for Prefect as Prefect does; it registers itself."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (takes long)

    for point in entry_points(group="prefect.collections", name="dpflow"):
        point.load()


@cache
def _block_url(name: str) -> str:
    """Ask Prefect for the URL that a block holds; once per process."""
    try:
        load_prefect()
        url = url_readers[BLOCK_PREFIX](name)
    except Exception as error:
        msg = (
            f"the ledger's URL is in the Prefect block dpflow-ledger/{name}, which "
            f"cannot be loaded ({type(error).__name__}: {error}). Save it with "
            f'DpflowLedger(url=...).save("{name}"), or check PREFECT_API_URL.'
        )
        raise ConfigurationError(msg) from error
    return str(url).strip()


def _absolute(url: str, root: Path) -> str:
    if url.startswith(BLOCK_PREFIX):
        url = _block_url(url.removeprefix(BLOCK_PREFIX))
    kind, prefix, path = url.partition("sqlite:///")
    # Joining with an absolute path leaves that one as it is.
    return url if kind or not prefix else f"{prefix}{root / path}"


def file_stamp(path: str) -> Stamp:
    """Tell one content of a file from another; no one can set a ctime."""
    return _stamp(_status(path))


def _status(path: str) -> os.stat_result | OSError:
    try:
        return os.stat(path)  # noqa: PTH116 (a text is quicker than a path)
    except OSError as error:
        return error


def _stamp(status: os.stat_result | OSError) -> Stamp:
    if isinstance(status, OSError):
        # An editor's lock file may point nowhere.
        return (type(status).__name__,)
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _table(pyproject: Path) -> dict[str, str]:
    require(
        pyproject.is_file() or not pyproject.exists(),
        f"{pyproject} is no regular file, and reading it may never end. Put a file "
        "there.",
    )
    try:
        data = tomllib.loads(pyproject.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        msg = f"cannot read {pyproject}: {error}"
        raise ConfigurationError(msg) from error
    tool = data.get("tool", {})
    table: Any = tool.get("dpflow", {}) if isinstance(tool, dict) else {}
    is_table = isinstance(table, dict)
    require(is_table, f"tool.dpflow in {pyproject} must be a table, got {table!r}")
    for key, value in table.items():
        require(
            key in _KEYS and isinstance(value, str),
            f"[tool.dpflow] in {pyproject} takes the texts {', '.join(_KEYS)}, got "
            f"{key} = {value!r}",
        )
    return dict(table)


def short_path(path: Path | str) -> str:
    """Write a path from the working directory, if it lies below it; keep a URL."""
    if "://" in str(path):
        return str(path)
    path = Path(path)
    with suppress(OSError, ValueError):  # a removed directory, another folder
        return str(path.relative_to(Path.cwd()))
    return str(path)
