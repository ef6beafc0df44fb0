"""dpflow: a budget guard for differentially private pipelines on Prefect.

Public names load at their first use, so that `import dpflow` costs little and does not
import Prefect. Each name stands once, in `__init__.pyi`, which type checkers read.
Further names: `dpflow.mechanisms`, `dpflow.costs`, `dpflow.accounting`,
`dpflow.interop`, `dpflow.policy`, `dpflow.people`, `dpflow.plots`, `dpflow.testing`.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.resources import files
from typing import Any

__version__ = "0.1.0"

_STUB = files(__name__).joinpath("__init__.pyi").read_text("utf-8")
_IMPORT = re.compile(r"^from (\S+) import [(\s]*(\w+) as", re.MULTILINE)
_PLACES = {name: module for module, name in _IMPORT.findall(_STUB)}
__all__ = ["__version__", *_PLACES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name == "forecast":
        # The package of this name is called like its function.
        return import_module("dpflow.forecast")
    module = _PLACES.get(name)
    if module is None:
        msg = f"module 'dpflow' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
