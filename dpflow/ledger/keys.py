"""Signatures and keyed digests: what only a holder of a secret can compute.

The private key signs checkpoints, and the public key checks them. Signatures are those
of Ed25519, by the library `cryptography`.

A checkpoint is an entry of the journal: an end of the journal that a holder of the
private key verified. It counts the checkpoints before it and names the last signature,
so none can be taken out of the middle. A writer of the database can compute the whole
chain anew, but not these signatures; nor can a reader who checks them with the public
key. The newest can be cut off together with the journal's end; the witness detects
that.

Keyed digests (HMAC) stand for names of releases, their arguments and their values.
Their key is the ledger's secret. A reader's role on PostgreSQL cannot read it, and so
cannot try which value has a digest.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dpflow.config import KEY_VARIABLE, settings
from dpflow.exceptions import ConfigurationError, LedgerError, ReleaseError
from dpflow.interrupts import suppress, without_interrupts
from dpflow.ledger.entry import canonical
from dpflow.ledger.storage.base import readable
from dpflow.ledger.storage.storage import Storage

# ruff: noqa: PLC0415 (most processes have no key, and need not load what signs)

#: Returns the signature of a message.
Sign = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """A key of the ledger.

    Attributes:
        public: The 32 bytes of the public key.
        sign: Signs with the private key; None if only the public key is here.
    """

    public: bytes
    sign: Sign | None = field(default=None, repr=False)

    def verifies(self, message: bytes, signature: str) -> bool:
        """Say whether the private key signed a message.

        Args:
            message: The message.
            signature: In hexadecimal.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        key = Ed25519PublicKey.from_public_bytes(self.public)
        with suppress(InvalidSignature, TypeError, ValueError):
            key.verify(bytes.fromhex(signature), message)
            return True
        return False


def ledger_key() -> LedgerKey | None:
    """Return the key that `DPFLOW_LEDGER_KEY` names, or None if it is not set.

    Raises:
        ConfigurationError: If it names no file, or none that holds a key of Ed25519.
    """
    place = os.environ.get(KEY_VARIABLE, "").strip()
    if not place:
        return None
    try:
        return key_from_text((settings().root / place).read_bytes())
    except without_interrupts(OSError, ValueError) as error:
        # Not the variable's text: somebody may have put a secret there.
        why = getattr(error, "strerror", None) or error
    msg = (
        f"{KEY_VARIABLE} names no file of a key ({why}). It is the path of a key in "
        "PEM, and no key itself. Name such a file; `dpflow ledger sign --new-key KEY` "
        "writes a private key, and KEY.pub for those who verify."
    )
    raise ConfigurationError(msg)


def key_from_text(text: bytes) -> LedgerKey:
    """Read a key, private or public.

    Args:
        text: The content of its file, in PEM.

    Raises:
        ValueError: If it holds no key of Ed25519.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key: Any = None
    with suppress(TypeError, ValueError, UnsupportedAlgorithm):
        if b"PRIVATE KEY-----" in text:
            key = form.load_pem_private_key(text, password=None)
        else:
            key = form.load_pem_public_key(text)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return LedgerKey(key.public_key().public_bytes_raw(), key.sign)
    if isinstance(key, ed25519.Ed25519PublicKey):
        return LedgerKey(key.public_bytes_raw())
    msg = "it holds no key of Ed25519 without a passphrase"
    raise ValueError(msg)


def write_keys(place: Path) -> Path:
    """Write a new private key, for its owner's eyes only, and its public key.

    Args:
        place: The new file of the private key.

    Returns:
        The file of the public key, with the ending `.pub`.

    Raises:
        ConfigurationError: If one of the files exists, or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, pem = Ed25519PrivateKey.generate(), form.Encoding.PEM
    secret = private.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption())
    shared = private.public_key().public_bytes(
        pem, form.PublicFormat.SubjectPublicKeyInfo
    )
    public, written = place.with_name(f"{place.name}.pub"), list[Path]()
    try:
        for path, text, mode in ((place, secret, 0o600), (public, shared, 0o644)):
            with open(path, "xb", opener=partial(os.open, mode=mode)) as file:
                written.append(path)
                file.write(text)
    except without_interrupts(OSError) as error:
        for path in written:
            path.unlink()
        msg = (
            f"cannot write the key {error.filename or place}: {error.strerror}. An "
            "existing file is never replaced. Name a new file in an existing folder."
        )
        raise ConfigurationError(msg) from error
    return public


# Checkpoints


#: Facts of a checkpoint: number and hash of the newest entry that was verified, count
#: of the checkpoints with this one, the previous signature (empty for the first), and
#: the signature of these.
SIGNED = ("number", "hash", "count", "previous", "signature")


def signed_text(ledger: str, point: Mapping[str, Any]) -> bytes:
    """Return the signed message of a checkpoint of a ledger with this id."""
    return canonical([ledger, *map(point.__getitem__, SIGNED[:-1])]).encode()


def signed_point(
    sign: Sign, ledger: str, head: tuple[int, str], last: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the facts of the next checkpoint.

    Args:
        sign: Signs with the ledger's private key.
        ledger: Id of the ledger.
        head: Number and hash of the newest entry that was verified.
        last: Facts of the last checkpoint, if there is one.
    """
    number, digest = head
    count, previous = (last["count"], last["signature"]) if last else (0, "")
    facts = (number, digest, count + 1, previous)
    point: dict[str, Any] = dict(zip(SIGNED, facts, strict=False))
    return {**point, "signature": sign(signed_text(ledger, point)).hex()}


# Keyed digests


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
