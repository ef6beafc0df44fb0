"""Keys for tests, and their files."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpflow.ledger.keys import LedgerKey


def key_of(letter: str) -> LedgerKey:
    """Return a private key that is always the same."""
    private = _private(letter)
    return LedgerKey(private.public_key().public_bytes_raw(), private.sign)


def key_file(folder: Path, letter: str, *, public: bool = False) -> str:
    """Write that key to a file, or its public key, and return where."""
    pem, private = form.Encoding.PEM, _private(letter)
    text = (
        private.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo)
        if public
        else private.private_bytes(pem, form.PrivateFormat.PKCS8, form.NoEncryption())
    )
    place = folder / f"key-{letter}{'.pub' * public}"
    place.write_bytes(text)
    return str(place)


def _private(letter: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(letter.encode() * 32)
