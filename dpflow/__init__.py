"""dpflow: a budget guard for differentially private pipelines on Prefect.

Public names load when first used, so that `import dpflow` costs little and does not
import Prefect.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpflow.accounting.costs import (
        ZCDP as ZCDP,
    )
    from dpflow.accounting.costs import (
        ApproxDP as ApproxDP,
    )
    from dpflow.accounting.costs import (
        Gaussian as Gaussian,
    )
    from dpflow.accounting.costs import (
        Laplace as Laplace,
    )
    from dpflow.accounting.costs import (
        PureDP as PureDP,
    )

__version__ = "0.1.0"

_PLACES = {
    "ApproxDP": "dpflow.accounting.costs",
    "Gaussian": "dpflow.accounting.costs",
    "Laplace": "dpflow.accounting.costs",
    "PureDP": "dpflow.accounting.costs",
    "ZCDP": "dpflow.accounting.costs",
}

__all__ = [*_PLACES, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        msg = f"module 'dpflow' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(place), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
