"""Policies for the tests of policies, and the one way to check a refusal."""

from __future__ import annotations

import pytest

from dpflow.exceptions import PolicyError
from dpflow.policy import parse_policy

EXAMPLE = """\
# yaml-language-server: $schema=policy.schema.json
dataset: cdnow
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: gdp
odometer: {theorem: rdp, delta: 1e-6}
flows:
  weekly-report: {epsilon: 2, delta: 5e-7, halt_at_epsilon: 3}
other_flows: refuse
alerts: [0.5, 0.8, 0.95]
errors: redact
on_exhausted: {flow: halt, schedule: pause}
"""

SHORT = """\
dataset: cdnow
unit: customer
relation: add-or-remove
budget: {epsilon: 3, delta: 1e-6}
filter: gdp
"""


def edited(old: str, new: str, text: str = EXAMPLE) -> str:
    """Change one place of a policy."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


def refused(text: str) -> PolicyError:
    """Return the refusal of a text, after checking what every refusal has."""
    file = "cdnow.yaml"
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, file=file)
    error = caught.value
    assert file == error.file
    assert error.hint
    assert error.hint in str(error)
    assert str(error).startswith(f"{file}:{error.line}: ")
    return error


def share(text: str) -> str:
    """Replace the share of the example's flow."""
    return edited("{epsilon: 2, delta: 5e-7, halt_at_epsilon: 3}", text)
