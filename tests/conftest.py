"""How hypothesis runs in the whole suite, and what every test leaves behind."""

import gc
import logging
import os
import random
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.sizes import SCALE, scaled

#: Settings of the tests themselves. All others of this environment, the developer's own
#: Prefect and dpflow, are removed before either is imported.
OF_TESTS = {
    "DPFLOW_AIRFLOW",
    "DPFLOW_BROWSER",
    "DPFLOW_CAMPAIGN",
    "DPFLOW_DAGSTER",
    "DPFLOW_SEED",
}
for _name in [n for n in os.environ if n.startswith(("PREFECT_", "DPFLOW_"))]:
    if _name not in OF_TESTS:
        del os.environ[_name]
_TERMINAL = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"}
for _name in {*_TERMINAL, "TZ", "PYTEST_ADDOPTS"}:
    os.environ.pop(_name, None)
os.environ |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}

# Most objects live until the end; to look for circles among them took 8 % of the time.
gc.set_threshold(50_000)

# Searches try constants of all loaded modules, and would depend on the tests before.
_providers: Any = sys.modules.get("hypothesis.internal.conjecture.providers")
if hasattr(_providers, "_get_local_constants"):
    _providers._get_local_constants = _providers.Constants

settings.register_profile(
    "dpflow",
    deadline=None,
    print_blob=True,
    # Luck decides about no push; the campaign looks elsewhere each time.
    derandomize=SCALE <= 1,
    max_examples=scaled(20),
)
settings.load_profile("dpflow")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for a random order."""
    parser.addoption("--shuffle", metavar="SEED", help="run the tests in random order")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Shuffle the modules, and the tests of each, with the seed of `--shuffle`."""
    seed = config.getoption("--shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)
        modules = list(dict.fromkeys(item.path for item in items))
        items.sort(key=lambda item: modules.index(item.path))
    # No collection of garbage looks at all loaded modules and tests again.
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _witnesses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the witnesses of all ledgers out of the user's home."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    patch.delenv("DPFLOW_WITNESS", raising=False)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _no_open_projects() -> Iterator[None]:
    """Close the ledgers that a test has opened by way of its working directory."""
    yield
    # Tests of pure maths need not pay for importing the ledger.
    if "dpflow.guard.project" in sys.modules:
        sys.modules["dpflow.guard.project"].forget_projects()


@pytest.fixture(autouse=True)
def _no_further_costs() -> Iterator[None]:
    """Forget the costs that a test has defined: errors name all that are defined."""
    from dpflow.accounting.costs.base import _KINDS

    before = {*_KINDS}
    yield
    for name in _KINDS.keys() - before:
        if not _KINDS[name].__module__.startswith("dpflow."):
            del _KINDS[name]


@pytest.fixture(autouse=True)
def _dpflow_logs() -> None:
    """Let dpflow's own messages through: absl raises the root logger's level."""
    logging.getLogger("dpflow").setLevel(logging.DEBUG)


@pytest.fixture
def postgres_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the URL of an empty PostgreSQL database; its ledger has no witness."""
    monkeypatch.setenv("DPFLOW_WITNESS", "none")
    # Only the tests that need the server start it.
    from tests.postgres import server

    url = server().new_database()
    yield url
    server().drop(url)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a ledger in memory, or on the storages of its marker.

    Random histories show that both databases decide alike. A campaign runs
    each test on both databases.
    """
    fixtures = metafunc.definition._fixtureinfo.name2fixturedefs.get("path", ())
    if fixtures and fixtures[-1].func.__module__ == __name__:
        marker = metafunc.definition.get_closest_marker("storages")
        storages = marker.args if marker else ("memory",)
        more = ("sqlite", "postgres") if SCALE > 1 else ()
        metafunc.parametrize("path", sorted({*storages, *more}), indirect=True)


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    """Give a place for a ledger: a file, an empty database or memory."""
    if request.param == "sqlite":
        yield tmp_path / "ledger.db"
    elif request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        from dpflow.ledger.tables.sqlite import forget_memory

        url = f"memory://{uuid.uuid4().hex}"
        yield url
        forget_memory(url)
