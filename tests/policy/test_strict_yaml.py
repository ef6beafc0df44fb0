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
from tests.policy_examples import EXAMPLE, SHORT, edited, refused

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


REFUSED_TEXTS = [
    ("", 1, "must be a mapping", "Start with `dataset: NAME`"),
    ("\n- dataset: a\n", 2, "must be a mapping", "Start with"),
    (SHORT + "---\n" + SHORT, 6, "found another document", "Write one document"),
    (SHORT + "unit: user\n", 6, "'unit' appears twice (first on line 2)", "Keep one"),
    (edited("1e-6}", "1e-6, epsilon: 4}", SHORT), 4, "'epsilon' appears", "Keep one"),
    (edited("customer", "&u customer", SHORT), 2, "the anchor &u", "value out"),
    (edited("customer", "!!python/name:os.system x", SHORT), 2, "is not a", "quote it"),
    (edited("customer", "[" * 9 + "]" * 9, SHORT), 2, "deeper than 8", "Flatten"),
    (edited("customer", "a: b: c", SHORT), 2, "not YAML: mapping values", "colons"),
    (edited("customer", "a\x01b", SHORT), 2, "sign U+0001", "Delete all"),
    (edited("customer", "a\ufffeb", SHORT), 2, "sign U+FFFE", "Delete all"),
    (edited("customer", r'"\U99999999"', SHORT), 2, "names no character", "itself"),
    (edited("customer", r'"\ud800"', SHORT), 2, "names no character", "itself"),
    (edited("customer", "\ud800", SHORT), 2, "byte 0xed is not UTF-8", "as UTF-8"),
    (edited("unit:", "? [a]\n: b\nunit:", SHORT), 2, "a key must be", "Write `name: "),
    (edited("unit:", "1: b\nunit:", SHORT), 2, "the key '1' is not", 'Quote it: "1"'),
    (edited(" customer", "", SHORT), 2, "unit has no value", "delete the line"),
    (edited("cdnow", "007", SHORT), 1, "dataset: 007 has a leading zero", "quote"),
]


def test_texts_that_are_no_plain_mapping_are_refused():
    """Text that reads otherwise than it looks is refused with its line."""
    for text, line, message, hint in REFUSED_TEXTS:
        error = refused(text)
        assert error.line == line, error
        assert message in str(error)
        assert hint in error.hint


def test_numbers_without_a_reasonable_size_are_refused():
    """No infinity, no text for a number, no number that is slow to compute."""
    for number in (".nan", "-.inf", "+.Inf", "1e401", "1e-999999999", "9" * 65):
        error = refused(edited("epsilon: 3", f"epsilon: {number}", SHORT))
        assert error.line == 4
        assert "budget.epsilon" in str(error)


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


#: Each hides something from an editor or a review; its name is part of the answer.
HIDING = [
    ("\x85", "U+0085, a control character"),
    ("\u2028", "U+2028, LINE SEPARATOR"),
    ("\r", "U+000D, a control character"),
    ("\x00", "U+0000, a control character"),
    ("\x1b", "U+001B, a control character"),
    ("\u202e", "U+202E, RIGHT-TO-LEFT OVERRIDE"),
    ("\u200b", "U+200B, ZERO WIDTH SPACE"),
    ("\ufeff", "U+FEFF, ZERO WIDTH"),
    ("\U000e0041", "U+E0041, TAG LATIN CAPITAL LETTER A"),
]


def test_characters_that_hide_a_field_are_refused():
    """A sign that editors show otherwise than YAML reads it is named, with its line."""
    for sign, named in HIDING:
        hidden = f"customer  # each one{sign}errors: keep  # {sign}"
        error = refused(edited("customer", hidden, SHORT))
        assert error.line == 2
        assert named in str(error)
        assert "type the line again" in error.hint


def test_a_hidden_field_would_have_been_read():
    """The control: for YAML such a sign ends the comment, and the field counts."""
    for sign in ("\x85", "\u2028", "\u2029", "\r"):
        hidden = f"customer  # each{sign}errors: keep  # {sign}"
        text = edited("customer", hidden, SHORT)
        assert yaml.safe_load(text)["errors"] == "keep"
        assert "errors" not in [line.partition(":")[0] for line in text.split("\n")]


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
