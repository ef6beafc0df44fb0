"""Where the ledger and the policies are: environment, pyproject.toml, defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import compress
from pathlib import Path
from typing import Any

from dpflow.exceptions import ConfigurationError, require
from dpflow.interrupts import contextmanager, suppress, without_interrupts

LEDGER_VARIABLE = "DPFLOW_LEDGER_URL"
POLICIES_VARIABLE = "DPFLOW_POLICIES"
WITNESS_VARIABLE = "DPFLOW_WITNESS"
ENVIRONMENT_VARIABLE = "DPFLOW_ENVIRONMENT"
#: Each setting in pyproject.toml with the variable that comes before it.
SETTINGS = {
    "ledger_url": LEDGER_VARIABLE,
    "policies": POLICIES_VARIABLE,
    "witness": WITNESS_VARIABLE,
    "environment": ENVIRONMENT_VARIABLE,
    "people": "DPFLOW_PEOPLE",
}
#: Number of characters of a ledger's id that tell projects apart.
_LABEL = 6
#: The value of `witness` for a ledger without a witness.
NO_WITNESS = "none"
#: Prefix of the name of a Prefect block that holds the ledger's URL.
BLOCK_PREFIX = "prefect-block:"
#: Functions that read a URL by its prefix; `dpflow.prefect` adds the one for blocks.
url_readers: dict[str, Callable[[str], str]] = {}

#: The id of the outermost flow run around this call, and whether it is a subflow.
_flow: ContextVar[tuple[str, bool] | None] = ContextVar("dpflow_flow", default=None)
#: The settings of this process, once a step of it has opened its project.
_of_process: list[Settings] = []

#: Identity of a file's content.
Stamp = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where things are.

    Attributes:
        root: The project's root: the folder of the nearest pyproject.toml above the
            working directory, else the working directory.
        ledger_url: `sqlite:////absolute/path` or `postgresql://...`, also where a
            Prefect block named it; may hold a password, so that no text contains it.
        policies: Folder of the policy files and of `ledger.lock`.
        witness: Place of the ledger's witness: a folder, `postgresql://...` of another
            database; "none" waives it, None is the default of the ledger's kind. May
            hold a password, so that no text contains it.
        environment: What this process runs in, such as "production"; None if it is
            not set. A ledger that was created for one serves no other.
        people: Folder of the stores of personal budgets; None if it is not set.
    """

    root: Path
    ledger_url: str = field(repr=False)
    policies: Path
    witness: str | None = field(default=None, repr=False)
    environment: str | None = None
    people: Path | None = None

    def label(self, ledger: str) -> str:
        """Return the environment, or the start of a ledger's id.

        It distinguishes two projects on one server of Prefect or one monitoring system.

        Args:
            ledger: Id of the project's ledger.
        """
        return self.environment or ledger[:_LABEL]

    @property
    def witness_warning(self) -> str | None:
        """Warning of a witness inside the project; None without a reason for one."""
        witness = self.witness or ""
        folder, root = os.path.realpath(witness), os.path.realpath(self.root)
        if not witness.startswith("/") or not Path(folder).is_relative_to(root):
            return None
        return (
            f"the witness {folder} is inside the project: a restore of the project "
            "would bring back both, and hide the loss of charges. Set `witness` to a "
            "folder on another volume."
        )


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
        return _read(Path(directory).absolute())
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


def keep_settings(setup: Settings) -> None:
    """Keep the settings of the first step for the whole process."""
    _of_process[:] = _of_process or [setup]


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


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except without_interrupts(OSError) as error:
        msg = (
            "the project cannot be found, because the working directory was removed "
            f"or is out of reach ({error.strerror}). Change to a folder of the project."
        )
        raise ConfigurationError(msg) from error


def _read(here: Path) -> Settings:
    """Read the settings for a directory.

    The project's root is the nearest folder upwards that has a pyproject.toml, else
    the directory.
    """
    folders = (here, *here.parents)
    # Not `Path.is_file`, which raises where a folder may not be searched.
    has_file = (os.path.isfile(f / "pyproject.toml") for f in folders)  # noqa: PTH113
    project = next(compress(folders, has_file), None)
    root = project or here
    table = {} if project is None else _table(root / "pyproject.toml")
    values = {
        # A secret that `echo` wrote ends with a line end.
        key: os.environ.get(variable, "").strip() or table.get(key, "").strip()
        for key, variable in SETTINGS.items()
    }
    for key in ("policies", "people", "witness"):
        if "://" not in values[key]:
            values[key] = expand(values[key], f"{key} ({SETTINGS[key]})")
    witness = values["witness"]
    is_folder = witness not in ("", NO_WITNESS) and "://" not in witness
    return Settings(
        root=root,
        ledger_url=_absolute(
            values["ledger_url"] or "sqlite:///.dpflow/ledger.db", root
        ),
        policies=root / (values["policies"] or "policies"),
        witness=str(root / witness) if is_folder else witness or None,
        environment=values["environment"] or None,
        people=root / values["people"] if values["people"] else None,
    )


def expand(path: str, setting: str) -> str:
    """Return a path with a leading `~` expanded.

    Raises:
        ConfigurationError: If it names a variable, or an unknown home folder.
    """
    home = os.path.expanduser(path)  # noqa: PTH111 (a text, which may be empty)
    if "$" in path or home.startswith("~"):
        absolute = os.path.expandvars(home)
        example = "" if {*"$~"} & {*absolute} else f": {absolute}"
        msg = (
            f"{setting} is {path!r}, which would be a folder of that name: variables "
            f"are not expanded. Write the absolute path{example}."
        )
        raise ConfigurationError(msg)
    return home


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
    except without_interrupts(Exception) as error:
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
    if kind or not prefix:
        return url
    # Joining with an absolute path leaves that one as it is.
    return f"{prefix}{root / expand(path, f'ledger_url ({LEDGER_VARIABLE})')}"


def file_stamp(path: str) -> Stamp:
    """Return a file's stamp, which changes with the content (ctime cannot be set)."""
    try:
        status = os.stat(path)  # noqa: PTH116 (a text is quicker than a path)
    except without_interrupts(OSError) as error:
        # An editor's lock file may point nowhere.
        return (type(error).__name__,)
    return (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _table(pyproject: Path) -> dict[str, str]:
    try:
        data = tomllib.loads(pyproject.read_text("utf-8"))
    except without_interrupts(OSError, ValueError) as error:
        msg = f"cannot read {pyproject}: {error}"
        raise ConfigurationError(msg) from error
    tool = data.get("tool", {})
    table: Any = tool.get("dpflow", {}) if isinstance(tool, dict) else {}
    message = f"tool.dpflow in {pyproject} must be a table, got {table!r}"
    require(isinstance(table, dict), message)
    for key, value in table.items():
        require(
            key in SETTINGS and isinstance(value, str),
            f"[tool.dpflow] in {pyproject} takes the texts {', '.join(SETTINGS)}, got "
            f"{key} = {value!r}",
        )
    return dict(table)


def short_path(path: Path | str) -> str:
    """Write a path from the working directory, if it lies below it; keep a URL."""
    with suppress(OSError, ValueError):  # a removed directory, another folder
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)
