"""docs/terms.md shows a policy and commands that are true."""

from __future__ import annotations

import re
import shlex

import pytest

from dpflow.policy import parse_policy
from tests.cli.support import Shop, run
from tests.projects import ROOT

TEXT = (ROOT / "docs" / "terms.md").read_text("utf-8")


def block(language: str) -> str:
    """Return the page's only block in a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)
    return str(found)


def test_the_policy_is_one() -> None:
    """With a lifetime and officers."""
    policy = parse_policy(block("yaml"))
    assert (policy.dataset, policy.officers) == ("visits", ("ann", "bob"))
    assert policy.lifetime is not None


def test_the_commands_run_in_their_order(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Bob, on a policy that Ann wrote; the first says that something differs."""
    monkeypatch.setenv("DPFLOW_PRINCIPAL", "bob")
    shop.write(block("yaml"), "visits.yaml")
    lines = [shlex.split(line) for line in block("console").splitlines()]
    assert [words[0] for words in lines] == ["dpflow"] * 4
    codes = [run(*words[1:]).exit_code for words in lines]
    assert codes == [1, 0, 0, 0]
