"""Numbered migrations of the tables, each from a version to the next.

No migration adds a column to the journal or rewrites it: new facts go into its bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: By the version that it makes, the statements of a migration on each database,
#: "sqlite" and "postgres". The first version of these tables is 5.
MIGRATIONS: Mapping[int, Mapping[str, Sequence[str]]] = {}
