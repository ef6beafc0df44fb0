"""Verify Ed25519 signatures (RFC 8032, 5.1.7) with the standard library alone.

Whoever verifies needs no secret, so that time may depend on everything here. One rule
holds wherever dpflow verifies: the equation without the cofactor, as most libraries
have it; S below the group's order; points in their one encoding; and no key of small
order, for under such a key a signature that nobody made fits many messages. The rest
of a key is its owner's own business.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from hashlib import sha512

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
#: What stands before the 32 bytes of a public key in its file (RFC 8410, 4).
_HEADER = bytes.fromhex("302a300506032b6570032100")
_PEM = re.compile(
    rb"\s*-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*"
)

#: Signs a message; says whether a message, then a signature of it, belong together.
Sign = Callable[[bytes], bytes]
Verifies = Callable[[bytes, bytes], bool]
#: X, Y, Z and T of a point: x = X/Z, y = Y/Z, x*y = T/Z.
Point = tuple[int, int, int, int]
_ZERO: Point = (0, 1, 1, 0)


def is_private(text: bytes) -> bool:
    """Say whether a file holds a private key in PEM, of whatever kind."""
    return b"PRIVATE KEY-----" in text


def public_key(text: bytes) -> bytes:
    """Return the 32 bytes of the public key that a file holds.

    Args:
        text: What the file holds: a public key in PEM.

    Raises:
        ValueError: With what it holds instead, and what to do.
    """
    if is_private(text):
        msg = (
            "it is a private key, and whoever verifies with it could sign, too. Take "
            "the public key: `dpflow ledger keygen KEY` writes it to KEY.pub, and "
            "`openssl pkey -in KEY -pubout` prints it"
        )
        raise ValueError(msg)
    data = _decoded(text)
    public = data[len(_HEADER) :]
    if not data.startswith(_HEADER) or _key(public) is None:
        msg = (
            "it is no public key of Ed25519 in PEM. A secret text, with which both "
            "signed and verified, is none: `dpflow ledger keygen KEY` makes a private "
            "key, and KEY.pub for those who verify"
        )
        raise ValueError(msg)
    return public


def _decoded(text: bytes) -> bytes:
    """Return what a file in PEM holds; nothing of any other."""
    found = _PEM.fullmatch(text)
    try:
        return base64.b64decode(b"".join(found[1].split())) if found else b""
    except binascii.Error:
        return b""


def verifies(public: bytes, message: bytes, signature: bytes) -> bool:
    """Say whether the owner of a key signed a message; malformed is a no.

    Args:
        public: The 32 bytes of the public key.
        message: What was signed.
        signature: The 64 bytes.
    """
    key = _key(public)
    if key is None or len(signature) != _SIGNATURE_BYTES:
        return False
    commitment, scalar = signature[:32], int.from_bytes(signature[32:], "little")
    if scalar >= _ORDER:
        return False
    digest = sha512(commitment + public + message).digest()
    challenge = int.from_bytes(digest, "little") % _ORDER
    # Encoded, so that the commitment is compared in its one encoding.
    return _encoded(_combined(scalar, challenge, _negated(key))) == commitment


def from_hex(text: object) -> bytes:
    """Return the bytes of a signature's one text; none of anything else."""
    try:
        data = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        return b""
    return data if data.hex() == text else b""


def _key(public: bytes) -> Point | None:
    """Return a key's point; None if it has none, or one of small order."""
    point = _point(public) if len(public) == _KEY_BYTES else None
    return None if point is None or _is_small(point) else point


def _point(text: bytes) -> Point | None:
    coded = int.from_bytes(text, "little")
    sign, y = coded >> 255, coded & (2**255 - 1)
    x = _root((y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P) if y < _P else None
    if x is None or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _P - x
    return x, y, 1, x * y % _P


def _root(square: int) -> int | None:
    root = pow(square, (_P + 3) // 8, _P)
    if (root * root - square) % _P:
        root = root * _ROOT_OF_MINUS_ONE % _P
    return None if (root * root - square) % _P else root


def _encoded(point: Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _sum(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0])
    b = (one[1] + one[0]) * (other[1] + other[0])
    c = 2 * one[3] * other[3] * _D
    d = 2 * one[2] * other[2]
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _negated(point: Point) -> Point:
    return _P - point[0], point[1], point[2], _P - point[3]


def _combined(scalar: int, factor: int, point: Point) -> Point:
    """Return scalar times the base point, plus factor times another point."""
    both = (None, _BASE, point, _sum(_BASE, point))
    total = _ZERO
    for place in range(max(scalar, factor).bit_length() - 1, -1, -1):
        total = _sum(total, total)
        chosen = both[scalar >> place & 1 | (factor >> place & 1) << 1]
        total = total if chosen is None else _sum(total, chosen)
    return total


def _is_small(point: Point) -> bool:
    """Say whether eight times a point is the neutral one."""
    for _ in range(3):
        point = _sum(point, point)
    return point[0] % _P == 0 and (point[1] - point[2]) % _P == 0


def _base() -> Point:
    point = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert point is not None
    return point


_BASE = _base()
