"""Numbered migrations of the tables, each from a version to the next.

A migration adds tables and columns, and drops none. It adds no column to a table with
hashes or marks (`journal`, `dataset`, `account`, `charge`): new facts go into the
bodies of entries and into requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Returns the request of a charge in the form of a version.
Rewrite = Callable[[dict[str, Any]], dict[str, Any]]

#: By the version that it makes, the statements of a migration on each database,
#: "sqlite" and "postgres". The first version of these tables is 5.
MIGRATIONS: Mapping[int, Mapping[str, Sequence[str]]] = {}

#: By the version whose form they write.
REWRITES: Mapping[int, Rewrite] = {}
