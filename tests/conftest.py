"""How hypothesis runs in the whole suite, and what every test leaves behind."""

import logging
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import settings

from tests.sizes import SCALE, scaled

#: Settings of the tests themselves. All others of this environment, the developer's own
#: Prefect and dpflow, are removed before either is imported.
OF_TESTS = {
    "DPFLOW_AIRFLOW",
    "DPFLOW_CAMPAIGN",
    "DPFLOW_DAGSTER",
    "DPFLOW_HUNT_URLS",
    "DPFLOW_SEED",
}
for _name in [n for n in os.environ if n.startswith(("PREFECT_", "DPFLOW_"))]:
    if _name not in OF_TESTS:
        del os.environ[_name]
for _name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TZ"):
    os.environ.pop(_name, None)
os.environ |= {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}

settings.register_profile(
    "dpflow",
    deadline=None,
    print_blob=True,
    # Luck decides about no push; the campaign looks elsewhere each time.
    derandomize=SCALE <= 1,
    max_examples=scaled(20),
)
settings.load_profile("dpflow")


#: Tests of a ledger that another process uses, or dies with. A ledger in memory serves
#: one process, and `test_memory.py` has what holds for a fork of it.
OTHER_PROCESSES = {
    "test_a_forfeit_posts_in_full",
    "test_a_dead_charge_stays_for_ever",
    "test_only_the_owner_voids",
    "test_an_ended_charge_has_ended",
    "test_an_ended_id_is_not_granted_again",
    "test_another_processs_claim_is_waited_for_while_it_lives",
    "test_a_dead_claims_cost_is_not_the_next_ones",
    "test_a_refused_attempt_leaves_a_dead_claim_alone",
    "test_a_refused_attempt_does_not_claim",
    "test_a_late_settlement_does_not_take_the_key_back",
    "test_a_forfeited_claim_is_free",
    "test_the_hash_chain_is_what_it_says",
    "test_spent_reserved_and_forfeited_are_told_apart",
    "test_steps_that_went_otherwise_are_counted",
    "test_used_fraction_includes_everything",
    "test_open_reservations_say_who_lives",
    "test_a_crash_before_the_seal_leaves_the_rest_held",
    "test_an_operator_closes_it_in_full",
    "test_whoever_runs_a_killed_run_again_takes_it_over",
    "test_a_living_run_is_sealed_by_its_own_process_only",
}
#: Tests that count or break a driver's statements, of which memory has no driver, and
#: one of a bundle of either database.
DRIVERS = {
    "test_what_no_entry_says_is_refused_when_it_is_read",
    "test_a_batch_is_one_commit",
    "test_a_decision_costs_the_same_after_many_charges",
    "test_a_seal_whose_answer_is_lost_is_sent_again",
    "test_a_void_whose_answer_is_lost_is_sent_again",
}
NOT_IN_MEMORY = OTHER_PROCESSES | DRIVERS
#: Tests of a witness, which a ledger in memory has not.
OF_A_WITNESS = {"tests.ledger.witness.test_witnessed_decisions"}
#: Tests of what each database is asked, and of all that a ledger does.
OF_DATABASES = {
    f"tests.ledger.{name}"
    for name in (
        "audit.test_verify_edits",
        "decision.test_releases",
        "storage.test_readonly",
        "test_everything",
        "views.test_parts",
        "views.test_views",
    )
}


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
    if "dpflow.guard.project" in sys.modules:
        sys.modules["dpflow.guard.project"].forget_projects()


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
    """Run each test of a ledger where a ledger can be: at each push, where it differs.

    What is decided is decided by the same code everywhere, and `test_law.py` shows that
    all storages answer alike: at each push it is tried in memory alone. Files have the
    edits by hand, and both databases what is about them; a campaign has everything.
    """
    found = metafunc.definition._fixtureinfo.name2fixturedefs.get("path", ())
    if found and found[-1].func.__module__ == __name__:
        metafunc.parametrize("path", _places(metafunc), indirect=True)


def _places(metafunc: pytest.Metafunc) -> list[str]:
    """Return the storages that a test of a ledger runs on."""
    both = ["sqlite", "postgres"]
    room, name = metafunc.module.__name__, metafunc.function.__name__
    if not room.startswith("tests.ledger") or room in OF_A_WITNESS:
        return both
    if SCALE > 1:
        return both if name in NOT_IN_MEMORY else [*both, "memory"]
    if name in NOT_IN_MEMORY or room in OF_DATABASES:
        return both
    return ["sqlite" if _calls(metafunc.function, "edit", set()) else "memory"]


def _calls(function: Any, name: str, seen: set[Any]) -> bool:
    """Say whether a function uses a name, itself or by what it calls."""
    code = getattr(function, "__code__", None)
    if code is None or code in seen:
        return False
    seen.add(code)
    used = _names(code)
    return name in used or any(
        _calls(function.__globals__.get(each), name, seen) for each in used
    )


def _names(code: CodeType) -> set[str]:
    """Return the names that a function's code uses, and that of those within it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names}.union(*map(_names, inner))


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Of a test with many cases, run the first on PostgreSQL at each push."""
    if SCALE > 1:
        return
    seen: set[tuple[str, str]] = set()
    left_out = [item for item in items if _is_another_case(item, seen)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_another_case(item: pytest.Item, seen: set[tuple[str, str]]) -> bool:
    """Say whether a case of the same test runs on PostgreSQL already."""
    assert isinstance(item, pytest.Function)
    found = getattr(item, "callspec", None)
    room = item.module.__name__
    on_postgres = found is not None and found.params.get("path") == "postgres"
    if not on_postgres or room in OF_DATABASES:
        return False
    name = (room, item.originalname)
    return name in seen or bool(seen.add(name))


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    """Give a place for a ledger: a file, an empty database or memory."""
    if request.param == "sqlite":
        yield tmp_path / "ledger.db"
    elif request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        from dpflow.ledger.storage.memory import forget_memory

        url = f"memory://{uuid.uuid4().hex}"
        yield url
        forget_memory(url)
