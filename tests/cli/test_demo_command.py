"""`dpflow demo` hands over to the demo and passes its answer on."""

from __future__ import annotations

import httpx
import pytest

from dpflow.exceptions import DpflowError
from dpflow.starter.demo import server_needed
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
    error: Exception, kind: type[Exception]
) -> None:
    """The demo says what happened and what to do; other errors are not renamed."""
    with pytest.raises(kind) as caught, server_needed():
        raise error
    assert type(caught.value) is kind
    assert ("dpflow demo` again" in str(caught.value)) == (kind is DpflowError)
