"""Rows of a module of tests, from the YAML file next to it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from dpflow import Cost
from dpflow.accounting.costs.text import cost_from_text


def read_tables(module: str) -> dict[str, Any]:
    """Return the tables of the YAML file that has a module's name, by their names."""
    tables: dict[str, Any] = yaml.safe_load(
        Path(module).with_suffix(".yaml").read_text("utf-8")
    )
    return tables


def read_costs(texts: Iterable[str]) -> list[Cost]:
    """Return the costs of texts as policies write them."""
    return [cost_from_text(text) for text in texts]
