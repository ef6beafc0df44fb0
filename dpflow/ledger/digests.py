"""Keyed digests (HMAC): what only a holder of the ledger's secret can compute.

They stand for names of releases, their arguments and their values. A reader's role on
PostgreSQL cannot read the secret, and so cannot try which value has a digest.
"""

from __future__ import annotations

import hmac

from dpflow.exceptions import LedgerError, ReleaseError
from dpflow.interrupts import suppress
from dpflow.ledger.canonical import canonical
from dpflow.ledger.tables.database import Database
from dpflow.ledger.tables.errors import readable


class Digests:
    """Digests with the secret of one ledger.

    Args:
        database: The database of the ledger.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._secret: bytes | None = None

    def of(self, *parts: object) -> str:
        """Return the digest of what identifies something."""
        if self._secret is None:
            address = self._database.address
            with readable(address), self._database.snapshot() as transaction:
                self._secret = transaction.secret()
        text = canonical(list(parts)).encode()
        return hmac.digest(self._secret, text, "sha256").hex()

    def of_value(self, charge: str, value: str) -> str:
        """Return the digest of a release's encoded value."""
        return self.of("value", charge, value)

    def is_readable(self) -> bool:
        """Return True if this process may read the secret."""
        with suppress(LedgerError):
            return bool(self.of())
        return False

    def check_value(
        self, value: str, charge: str, digest: str | None, name: str
    ) -> None:
        """Refuse a value that is not the one that was settled.

        Raises:
            ReleaseError: If its digest is another.
        """
        if self.of_value(charge, value) != digest:
            msg = (
                f"the value of release {name!r} is not the one that was settled: its "
                "digest differs. Someone edited the ledger, or it is damaged; run "
                "`dpflow ledger verify`."
            )
            raise ReleaseError(msg)
