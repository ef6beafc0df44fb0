"""`dpflow demo` hands over to the demo and passes its answer on."""

from __future__ import annotations

import httpx
import pytest

from dpflow.exceptions import DpflowError
from dpflow.starter.demo import _run_weeks
from tests.cli.support import Shop, run_process

#: The command, as if some libraries were not installed.
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
sys.argv = ["dpflow", "demo"]
from dpflow.cli import main
main()
"""


@pytest.mark.parametrize("names", [("lifetimes",), ("opendp", "pandas", "matplotlib")])
def test_without_its_libraries_the_demo_says_what_to_install(
    empty: Shop, names: tuple[str, ...]
) -> None:
    """In one error, before anything is made or charged."""
    done = run_process(*names, code=WITHOUT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.split())
    assert all(name in text for name in names)
    assert "[examples]" in text
    assert list(empty.root.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ReadTimeout("10.0.0.1 is late"), DpflowError),
        (RuntimeError("Timed out: no server"), DpflowError),
        (RuntimeError("a fault"), RuntimeError),
    ],
)
def test_a_server_that_does_not_answer_is_one_plain_error(
    error, kind, tmp_path, monkeypatch
):
    """The demo says what happened and what to do; other errors are not renamed."""

    async def fail(*_):
        raise error

    for name in ("PREFECT_API_URL", "PREFECT_LOGGING_LEVEL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("flows.data.weeks", list)
    monkeypatch.setattr("flows.weekly_report.run_weeks", fail)
    with pytest.raises(kind) as caught:
        _run_weeks(tmp_path, print)
    assert type(caught.value) is kind
    assert ("dpflow demo` again" in str(caught.value)) == (kind is DpflowError)
