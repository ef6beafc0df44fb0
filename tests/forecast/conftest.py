"""Engines are asked in projects as the commands' tests make them."""

from tests.cli.conftest import empty, shop

__all__ = ["empty", "shop"]
