"""Tables of cases, from the YAML file next to a module of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def read_cases(module: str) -> Any:
    """Return the cases of the YAML file that has a module's name."""
    return yaml.safe_load(Path(module).with_suffix(".yaml").read_text("utf-8"))
