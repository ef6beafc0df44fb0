"""Policies for the tests of policies, and the one way to check a refusal."""

from __future__ import annotations

import pytest

from dpflow.exceptions import PolicyError
from dpflow.policy import parse_policy
from tests.tables import read_tables

POLICIES: dict[str, str] = read_tables(__file__)
EXAMPLE, SHORT = POLICIES["long"], POLICIES["short"]


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
