"""The ledger's keys: the private one signs, and the public one checks who signed.

Checkpoints are signed with Ed25519, by the library `cryptography`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpflow.config import KEY_VARIABLE, settings
from dpflow.exceptions import ConfigurationError

# ruff: noqa: PLC0415 (most processes have no key, and need not load what signs)

#: Signs a message; says whether a message, then a signature of it, belong together.
Sign = Callable[[bytes], bytes]
Verifies = Callable[[bytes, bytes], bool]


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """What a process knows of the ledger's keys.

    Attributes:
        public: The 32 bytes of the public key.
        sign: Signs with the private key; None for who has the public key alone.
    """

    public: bytes
    sign: Sign | None = field(default=None, repr=False)

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Say whether the private key signed a message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except InvalidSignature:
            return False
        return True


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
    except OSError as error:
        # Not what it holds: somebody may have put a secret there.
        msg = (
            f"{KEY_VARIABLE} names no file that can be read ({error.strerror}). It is "
            "the path of a key, and no key itself: `dpflow ledger sign --new-key KEY` "
            "makes one"
        )
    except ValueError as error:
        msg = f"the file that {KEY_VARIABLE} names cannot be used: {error}"
    raise ConfigurationError(msg)


def key_from_text(text: bytes) -> LedgerKey:
    """Read a key, private or public.

    Args:
        text: What its file holds, in PEM.

    Raises:
        ValueError: With what it holds instead, and what to do.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    found: object = None
    with suppress(TypeError, ValueError, UnsupportedAlgorithm):
        if b"PRIVATE KEY-----" in text:
            found = serialization.load_pem_private_key(text, password=None)
        else:
            found = serialization.load_pem_public_key(text)
    if isinstance(found, ed25519.Ed25519PrivateKey):
        return LedgerKey(found.public_key().public_bytes_raw(), found.sign)
    if isinstance(found, ed25519.Ed25519PublicKey):
        return LedgerKey(found.public_bytes_raw())
    msg = (
        "it holds no key of Ed25519 in PEM without a passphrase: `dpflow ledger sign "
        "--new-key KEY` makes a private key, and KEY.pub for those who verify"
    )
    raise ValueError(msg)


def from_hex(text: object) -> bytes:
    """Return the bytes of a signature's one text; empty for anything else."""
    try:
        data = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""
    return data if data.hex() == text else b""


def write_keys(place: Path) -> Path:
    """Write a new private key, for its owner's eyes only, and its public key.

    Args:
        place: The new file of the private key.

    Returns:
        The file of the public key, `.pub` beside it.

    Raises:
        ConfigurationError: If one of them is there, or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, pem = Ed25519PrivateKey.generate(), form.Encoding.PEM
    secret = private.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption())
    shown = private.public_key().public_bytes(
        pem, form.PublicFormat.SubjectPublicKeyInfo
    )
    beside = place.with_name(f"{place.name}.pub")
    _write_new(beside, shown, 0o644)
    try:
        _write_new(place, secret, 0o600)
    except ConfigurationError:
        beside.unlink()
        raise
    return beside


def _write_new(place: Path, text: bytes, mode: int) -> None:
    try:
        descriptor = os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor is no path)
            file.write(text)
    except FileExistsError:
        msg = f"there is a file {place} already, and no key is replaced; name a new one"
        raise ConfigurationError(msg) from None
    except OSError as error:
        msg = f"cannot write {place}: {error.strerror}"
        raise ConfigurationError(msg) from error
