"""The pages of a first reading are easy to read."""

import pytest

from tests.reading import faults, main

pytestmark = pytest.mark.quick


def test_the_first_pages_are_easy_to_read():
    """Their sentences are short, and no listed word stands in them."""
    assert main([]) == 0


def test_hard_text_is_reported():
    """Each measure has a text that fails it, and code has no measure."""
    easy = "# Title\n\nThe ledger holds each cost. A step runs after that.\n"
    long = "- " + "cost and " * 15 + "`told` noise.\n"
    dense = "The administrator's configuration necessitates reconciliation. " * 5
    code = "```sh\nwhoever was told\n```\n\n| is none | `gone` |\n"
    assert faults(easy) == faults(easy + code.replace("is none", "")) == []
    assert [line[:22] for line in faults(easy * 9 + long)] == ["32 words in a sentence"]
    assert faults(long)[1:] == ["32.0 words a sentence on average"]
    assert faults(dense)[0].startswith("reading ease -")
    assert faults(easy + code + "They were\ntold.") == ["'told'", "'is none'"]
