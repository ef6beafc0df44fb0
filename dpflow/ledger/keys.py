"""Keyed digests: what only a holder of the ledger's secret can compute.

Keyed digests (HMAC) stand for names of releases, their arguments and their values.
Their key is the ledger's secret. A reader's role on PostgreSQL cannot read it, and so
cannot try which value has a digest.
"""

from __future__ import annotations

import hmac

from dpflow.exceptions import LedgerError, ReleaseError
from dpflow.interrupts import suppress
from dpflow.ledger.entry import canonical
from dpflow.ledger.storage.base import readable
from dpflow.ledger.storage.storage import Storage


class Digests:
    """Digests with the secret of one ledger.

    Args:
        storage: Of the ledger.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._secret: bytes | None = None

    def of(self, *parts: object) -> str:
        """Return the digest of what identifies something."""
        if self._secret is None:
            with self._storage.read() as reading, readable(self._storage.place):
                self._secret = reading.secret()
        return hmac.digest(
            self._secret, canonical(list(parts)).encode(), "sha256"
        ).hex()

    def of_value(self, charge: str, value: str) -> str:
        """Return the digest of a release's encoded value."""
        return self.of("value", charge, value)

    def is_readable(self) -> bool:
        """Say whether this process may read the secret."""
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
