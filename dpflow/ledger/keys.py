"""Keys of the ledger: the private key signs checkpoints, the public key checks them.

Signatures are those of Ed25519, made by the library `cryptography`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dpflow.config import KEY_VARIABLE, settings
from dpflow.exceptions import ConfigurationError

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

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Say whether the private key signed a message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        with suppress(InvalidSignature):
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
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
    except (OSError, ValueError) as error:
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
        text: What its file holds, in PEM.

    Raises:
        ValueError: If it holds another key, or none.
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
    private = isinstance(key, ed25519.Ed25519PrivateKey)
    public = key.public_key() if private else key
    if not isinstance(public, ed25519.Ed25519PublicKey):
        msg = "it holds no key of Ed25519 without a passphrase"
        raise ValueError(msg)  # noqa: TRY004 (the text is wrong, not its type)
    return LedgerKey(public.public_bytes_raw(), key.sign if private else None)


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
        with open(place, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(text)
    except OSError as error:
        msg = (
            f"cannot write the key {place}: {error.strerror}. An existing file is "
            "never replaced. Name a new file in an existing folder."
        )
        raise ConfigurationError(msg) from error
