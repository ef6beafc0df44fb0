"""The witness in Prefect: artifacts that are only ever added.

Prefect keeps artifacts in its own database, which may be less durable than the ledger:
what it lacks proves nothing, but what it has must be in the ledger.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL

from dpflow.ledger.witness.lines import Header
from dpflow.ledger.witness.log import Found, LogDamaged, LogError, NotBegun

_PAGE = 50
_SECONDS = 20.0
_TYPE = "dpflow-witness"


class PrefectLog:
    """The log as artifacts of Prefect's server: one of each header and each grant.

    Whoever may use Prefect's interface can delete artifacts. Deleting all of them fails
    closed; deleting the newest only makes the witness forget those charges.
    """

    advice = "Restore it"

    def __init__(self) -> None:
        # The address may hold a name and a password; its host says enough.
        url = PREFECT_API_URL.value()
        self._kept: list[SyncPrefectClient] = []
        self._pid = os.getpid()
        self.place = f"prefect:{httpx.URL(url).host if url else ''}"

    def read(self, ledger: str, header: str, end: frozenset[str] | None) -> Found:
        """Return the lines of artifacts that were not read before."""
        epoch, newest = self._newest(ledger)
        known = end if newest == header else None
        lines, fresh = self._read(_key(ledger, epoch), known)
        return Found(newest, lines, fresh)

    def _newest(self, ledger: str) -> tuple[int, str]:
        """Return the newest epoch of a ledger's witness, and its header."""
        texts, _ = self._read(_key(ledger), None)
        found = []
        for text in texts:
            header = Header.from_text(text)
            if header is None:
                msg = "a header is no witness's"
                raise LogDamaged(msg)
            # Should two machines have begun an epoch at once, all take the same one.
            found.append((header.epoch, header.file, text))
        if not found:
            raise NotBegun
        epoch, _, newest = max(found)
        return epoch, newest

    def begin(
        self, ledger: str, epoch: int, header: str, lines: Sequence[tuple[str, str]]
    ) -> bool:
        """Begin an epoch: its lines first, for they count only beside a header."""
        with suppress(NotBegun):
            if self._newest(ledger)[0] >= epoch:
                return False
        if lines:
            self._write(_key(ledger, epoch), [text for _, text in lines])
        self._write(_key(ledger), [header])
        return True

    def append(self, ledger: str, lines: Sequence[tuple[str, str]], _: object) -> None:
        """Append lines as one artifact; what came before them is not known."""
        epoch, _ = self._newest(ledger)
        self._write(_key(ledger, epoch), [text for _, text in lines])

    def claim(self, source: str, ledger: str) -> str:
        """Return the first ledger that claimed a source, which a variable names.

        A variable's name is unique in Prefect, so that only the first can make it.
        """
        name = f"dpflow_source_{hashlib.sha256(source.encode()).hexdigest()}"
        body = {"name": name, "value": ledger, "tags": ["dpflow"]}
        with self._client() as client:
            # Should there be one already, or nothing work, reading tells.
            with suppress(LogError):
                self._ask(client, "POST", "/variables/", body)
            return str(self._ask(client, "GET", f"/variables/name/{name}")["value"])

    def _write(self, key: str, texts: Sequence[str]) -> None:
        body = {"key": key, "type": _TYPE, "data": "\n".join(texts)}
        with self._client() as client:
            self._ask(client, "POST", "/artifacts/", body)

    def _read(self, key: str, end: Any) -> tuple[list[str], frozenset[str]]:
        """Read the artifacts of a key that are not in `end`, newest first.

        The count tells whether all were found, whatever the clocks say that order them.
        """
        known: frozenset[str] = end or frozenset()
        chosen = {"artifacts": {"key": {"any_": [key]}}}
        found: dict[str, str] = {}
        with self._client() as client:
            count = int(self._ask(client, "POST", "/artifacts/count", chosen))
            offset, more = 0, True
            while more:
                body = {
                    **chosen,
                    "sort": "CREATED_DESC",
                    "limit": _PAGE,
                    "offset": offset,
                }
                page = self._ask(client, "POST", "/artifacts/filter", body)
                fresh = {a["id"]: a["data"] for a in page if a["id"] not in known}
                found |= fresh
                offset += len(page)
                complete = not fresh and len(known | found.keys()) >= count
                more = len(page) == _PAGE and not complete
        if len(known | found.keys()) < count:
            msg = "artifacts were deleted while they were read"
            raise LogError(msg)
        texts = [str(data) for data in reversed(found.values())]
        return [
            line for text in texts for line in text.split("\n")
        ], known | found.keys()

    @contextmanager
    def _client(self) -> Iterator[SyncPrefectClient]:
        """Lend a client that stays connected, but not over a fork or an error."""
        if self._pid != os.getpid():
            self._kept, self._pid = [], os.getpid()
        try:
            # Each for one thread at a time.
            client = self._kept.pop()
        except IndexError:
            client = get_client(
                sync_client=True, httpx_settings={"timeout": _SECONDS}
            ).__enter__()
        yield client
        self._kept.append(client)

    @staticmethod
    def _ask(
        client: SyncPrefectClient,
        method: Any,
        path: Any,
        body: dict[str, Any] | None = None,
    ) -> Any:
        """Ask the server, without the events that its own methods send besides."""
        try:
            return client.request(method, path, json=body).json()
        except httpx.HTTPStatusError as error:
            msg = f"Prefect answered {error.response.status_code}"
            raise LogError(msg) from None
        except (httpx.HTTPError, PrefectException, OSError, ValueError) as error:
            # What they say may hold the address, and with it a password.
            msg = f"Prefect does not answer ({type(error).__name__})"
            raise LogError(msg) from None


def _key(ledger: str, epoch: int | None = None) -> str:
    """Return the key of a witness's headers, or of the lines of an epoch."""
    return f"dpflow-witness-{ledger}" + ("" if epoch is None else f"-{epoch}")
