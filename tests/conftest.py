"""How hypothesis runs in the whole suite, and what every test leaves behind."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("dpflow", deadline=None, print_blob=True, derandomize=False)
settings.load_profile("dpflow")


@pytest.fixture(scope="session", autouse=True)
def _witnesses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the witnesses of all ledgers out of the user's home."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for name in ("DPFLOW_WITNESS", "DPFLOW_LEDGER_KEY"):
        patch.delenv(name, raising=False)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _no_open_projects() -> Iterator[None]:
    """Close the ledgers that a test has opened by way of its working directory."""
    yield
    # Tests of pure maths need not pay for importing the ledger.
    if "dpflow.project" in sys.modules:
        sys.modules["dpflow.project"].forget_projects()


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


@pytest.fixture(params=["sqlite", "postgres"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Give a place for a ledger: a file, or the URL of an empty database."""
    if request.param == "sqlite":
        return tmp_path / "ledger.db"
    url: str = request.getfixturevalue("postgres_url")
    return url
