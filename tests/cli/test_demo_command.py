"""`dpflow demo` hands over to the demo and passes its answer on."""

from __future__ import annotations

from tests.cli.support import run_process

#: The command, as if some libraries were not installed.
WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
sys.argv = ["dpflow", "demo"]
from dpflow.cli import main
main()
"""


def test_without_its_libraries_the_demo_says_what_to_install(empty):
    """In one error, before anything is made or charged."""
    names = ("lifetimes", "opendp", "pandas", "matplotlib")
    done = run_process(*names, code=WITHOUT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    text = " ".join(done.stderr.split())
    assert all(name in text for name in names)
    assert "[examples]" in text
    assert list(empty.root.iterdir()) == []
