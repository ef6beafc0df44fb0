"""Values of libraries that dpflow does not load."""

from __future__ import annotations

import sys


def comes_from(value: object, library: str) -> bool:
    """Return True if a value's type, or one that it inherits from.

    Then `import` gives the whole library: if another thread is still loading it, it
    waits. What `sys.modules` holds may be loaded by half, and is not to be used.

    Args:
        value: Anything.
        library: Name of a top-level package, such as "numpy".
    """
    kinds = type(value).__mro__ if sys.modules.get(library) else ()
    return any(str(kind.__module__).partition(".")[0] == library for kind in kinds)
