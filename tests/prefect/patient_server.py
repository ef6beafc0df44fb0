"""Prefect's server, whose transactions wait for one another.

It begins to write in transactions that have read. SQLite refuses that at once where
another has written meanwhile, whatever its timeout; the server answers 503, and its
client asks again two seconds later, or not at all.
"""

from __future__ import annotations

import sys

import uvicorn
from prefect.server.database.configurations import AioSqliteConfiguration

_begin = AioSqliteConfiguration.begin_transaction


def _begin_to_write(configuration, session, with_for_update=False):
    return _begin(configuration, session, with_for_update=True)


AioSqliteConfiguration.begin_transaction = _begin_to_write
uvicorn.main(sys.argv[1:])
