"""The strict reading of YAML: exact numbers, and refusals with their line."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dpflow.exceptions import PolicyError
from dpflow.policy import load_policies, load_policy, parse_policy
from tests.policy_examples import EXAMPLE, SHORT, edited

pytestmark = pytest.mark.quick

decimals = st.decimals(
    min_value=Decimal("1e-12"), max_value=Decimal(10000), allow_nan=False, places=None
).filter(lambda x: len(str(x)) <= 60)


@given(decimals)
@example(Decimal("0.1"))
@example(Decimal("1E-6"))
@example(Decimal("1e1"))
@example(Decimal("0.1234567890123456789012345678901234567890123456789"))
def test_decimals_are_read_exactly(number):
    """No digit of a literal is lost, bare or quoted, in any notation."""
    for text in (str(number), f"{number:f}", f'"{number}"', f"{number:e}"):
        if len(text) <= 64:
            policy = parse_policy(edited("epsilon: 3", f"epsilon: {text}", SHORT))
            assert number == policy.budget.epsilon
            assert Fraction(number) == policy.dataset_filter().epsilon


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    """Whatever stands in a file, the answer is a policy or a PolicyError."""
    for whole in (text, SHORT + text, edited("customer", text, SHORT)):
        try:
            policy = parse_policy(whole)
        except PolicyError as error:
            answer = error.hint
        else:
            answer = json.dumps(policy.to_pinned())
        assert answer


def test_files_over_64_kib_are_refused(tmp_path):
    """A policy is a page, not a book; 64 KiB themselves still pass."""
    path = tmp_path / "cdnow.yaml"
    padding = "#" * (64 * 1024 - len(SHORT))
    path.write_text(SHORT + padding)
    assert parse_policy(SHORT) == load_policy(path)
    path.write_text(SHORT + padding + "#")
    with pytest.raises(PolicyError, match="at most 64 KiB") as caught:
        load_policy(path)
    assert (str(path), None) == (caught.value.file, caught.value.line)
    assert caught.value.hint == "Give each dataset a file of its own."


def test_a_hidden_field_would_have_been_read():
    """The control: for YAML such a sign ends the comment, and the field counts."""
    for sign in ("\x85", "\u2028", "\u2029", "\r"):
        hidden = f"customer  # each{sign}errors: keep  # {sign}"
        text = edited("customer", hidden, SHORT)
        assert yaml.safe_load(text)["errors"] == "keep"
        assert "errors" not in [line.partition(":")[0] for line in text.split("\n")]


@pytest.mark.promise("hidden-field")
def test_a_hidden_field_is_refused_wherever_policies_are_read(tmp_path):
    """A file, a folder of them, and a text that git or a form handed over."""
    text = edited("customer", "customer  # each\rerrors: keep  # \r", SHORT)
    path = tmp_path / "cdnow.yaml"
    path.write_bytes(text.encode())
    for read in (
        lambda: load_policy(path),
        lambda: load_policies(tmp_path),
        lambda: parse_policy(text),
    ):
        with pytest.raises(PolicyError, match=r":2: .*U\+000D, a control"):
            read()


def test_files_of_windows_editors_are_read(tmp_path):
    """CR LF ends a line for everyone, and a mark at the beginning shows nowhere."""
    path = tmp_path / "cdnow.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode())
    assert load_policy(path) == parse_policy(EXAMPLE)
