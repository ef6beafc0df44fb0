"""The projects of the commands' tests."""

from tests.cli.conftest import empty, shop

__all__ = ["empty", "shop"]
