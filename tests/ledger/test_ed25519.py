"""The auditor's Ed25519: one rule, and another implementation has the same."""

from __future__ import annotations

import random
from base64 import b64encode
from hashlib import sha512

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dpflow.ledger import ed25519
from dpflow.ledger.ed25519 import from_hex, public_key, verifies
from dpflow.ledger.keys import LedgerKey

ORDER = 2**252 + 27742317777372353535851937790883648493
P = 2**255 - 19
SIGN = 1 << 255
#: RFC 8032, section 7.1: public key, message, signature; the long one is left out.
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        (
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
            "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f"
        ),
        (
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
            "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704"
        ),
    ),
]
#: The two y of the points of order 8.
EIGHTH = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
#: The points of order 1, 2, 4, 4, 8, 8, 8 and 8.
SMALL = [1, P - 1, *(y | sign for y in (0, EIGHTH, P - EIGHTH) for sign in (0, SIGN))]
#: Those of them that have other encodings.
AGAIN = [P, P + 1, P | SIGN, (P + 1) | SIGN, 1 | SIGN, (P - 1) | SIGN]


def both(public: bytes, message: bytes, signature: bytes) -> bool:
    """Ask both implementations, which must agree."""
    ours = verifies(public, message, signature)
    assert LedgerKey(public).verifies(message, signature) is ours
    return ours


def coded(number: int) -> bytes:
    """Return 32 bytes, the lowest first."""
    return number.to_bytes(32, "little")


class Owner:
    """Who has a private key, and can also sign by hand."""

    def __init__(self, seed: int, torsion: int = 1) -> None:
        private = Ed25519PrivateKey.from_private_bytes(coded(seed))
        self.sign = private.sign
        low = int.from_bytes(sha512(coded(seed)).digest()[:32], "little")
        self.scalar = (low & (2**254 - 8)) | 2**254
        self.public = moved(private.public_key().public_bytes_raw(), torsion)

    def by_hand(self, message: bytes, commitment: bytes, secret: int = 0) -> bytes:
        """Sign with a commitment that is the base times a secret, or claims so."""
        digest = sha512(commitment + self.public + message).digest()
        challenge = int.from_bytes(digest, "little")
        return commitment + coded((secret + challenge * self.scalar) % ORDER)


def moved(public: bytes, torsion: int) -> bytes:
    """Add a point of small order to a key."""
    one, other = ed25519._point(public), ed25519._point(coded(torsion))
    assert one is not None
    assert other is not None
    return ed25519._encoded(ed25519._sum(one, other))


OWNER = Owner(1)


@pytest.mark.parametrize(("public", "message", "signature"), VECTORS)
def test_the_vectors_of_the_rfc(public: str, message: str, signature: str) -> None:
    """Each verifies, and no longer with another message."""
    parts = [bytes.fromhex(part) for part in (public, message, signature)]
    assert both(*parts)
    assert not both(parts[0], parts[1] + b"!", parts[2])


def test_random_signatures_verify_and_a_changed_bit_does_not() -> None:
    """In the key, the message or the signature; both implementations say so."""
    draw = random.Random(8032)
    for _ in range(10):
        owner = Owner(draw.getrandbits(255))
        message = draw.randbytes(draw.randrange(1, 200))
        parts = [owner.public, message, owner.sign(message)]
        assert both(*parts)
        for place, whole in enumerate(parts):
            bit = draw.randrange(8 * len(whole))
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            assert not verifies(*parts[:place], bytes(changed), *parts[place + 1 :])
            if place:
                assert not both(*parts[:place], bytes(changed), *parts[place + 1 :])


def test_no_bit_of_a_signature_may_change() -> None:
    """One in seven of them, and the last; the control is the signature as it was."""
    signature = int.from_bytes(OWNER.sign(b"x"), "little")
    for bit in [*range(0, 512, 7), 511]:
        changed = (signature ^ 1 << bit).to_bytes(64, "little")
        assert not both(OWNER.public, b"x", changed), bit
    assert both(OWNER.public, b"x", signature.to_bytes(64, "little"))


@pytest.mark.parametrize("times", [1, 2, 15])
def test_s_is_below_the_order(times: int) -> None:
    """S and S + L give the same point: nobody makes a second form of a signature."""
    signature = OWNER.sign(b"x")
    again = int.from_bytes(signature[32:], "little") + times * ORDER
    assert not both(OWNER.public, b"x", signature[:32] + coded(again))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_key_has_32_bytes(length: int) -> None:
    """A good one that is cut or longer is refused, with an answer and no exception."""
    signature = OWNER.sign(b"x")
    assert not verifies((OWNER.public * 2)[:length], b"x", signature)
    assert verifies((OWNER.public * 2)[:32], b"x", signature)


@pytest.mark.parametrize("length", [0, 32, 63, 65, 128])
def test_a_signature_has_64_bytes(length: int) -> None:
    """A good one that is cut, or followed by a zero, is refused."""
    whole = OWNER.sign(b"x") + bytes(64)
    assert not both(OWNER.public, b"x", whole[:length])
    assert both(OWNER.public, b"x", whole[:64])


# Points of small order


def test_a_key_of_small_order_is_refused() -> None:
    """Under such a key anybody signs: another implementation takes what they make."""
    found = [0, 0]
    for number in SMALL:
        weak = coded(number)
        for text in range(24):
            made = coded(1) + coded(0)
            found[0] += verifies(weak, bytes([text]), made)
            found[1] += LedgerKey(weak).verifies(bytes([text]), made)
    assert found[0] == 0
    assert found[1] > 24


@pytest.mark.parametrize("number", [*SMALL, *AGAIN])
def test_no_file_gives_a_key_of_small_order(number: int) -> None:
    """It is refused before any implementation sees it; in other encodings, too."""
    with pytest.raises(ValueError, match="no public key of Ed25519"):
        public_key(pem(coded(number)))


def test_a_commitment_of_small_order_is_one_like_any_other() -> None:
    """The owner alone can sign with it, and only if it is what the equation gives."""
    assert both(OWNER.public, b"x", OWNER.by_hand(b"x", coded(1)))
    for number in SMALL[1:]:
        # With the cofactor, each of these would pass.
        assert not both(OWNER.public, b"x", OWNER.by_hand(b"x", coded(number)))


@pytest.mark.parametrize("number", AGAIN)
def test_a_commitment_has_one_encoding(number: int) -> None:
    """Made by the key's owner for that very encoding, it is refused all the same."""
    assert not both(OWNER.public, b"x", OWNER.by_hand(b"x", coded(number)))


@pytest.mark.parametrize("torsion", [P - 1, 0, EIGHTH])
def test_a_key_with_a_part_of_small_order_is_judged_alike(torsion: int) -> None:
    """Such a key's owner signs some messages only; both say which."""
    owner, found = Owner(3, torsion), []
    for number in range(40):
        message = bytes([number])
        found.append(both(owner.public, message, owner.by_hand(message, coded(1))))
    assert 0 < sum(found) < 40


# Encodings of keys


@pytest.mark.parametrize("y", range(19))
def test_a_key_has_one_encoding(y: int) -> None:
    """At or above the prime there is none, even where the rest is a good key."""
    for sign in (0, SIGN):
        assert ed25519._key(coded((P + y) | sign)) is None


def test_the_rest_is_a_good_key_for_some() -> None:
    """The control of the test above."""
    assert sum(ed25519._key(coded(y)) is not None for y in range(19)) > 5


def test_zero_has_no_sign() -> None:
    """The neutral point has x = 0: the bit of the sign must not be set there."""
    assert ed25519._point(coded(1)) is not None
    assert ed25519._point(coded(1 | SIGN)) is None


def pem(public: bytes, *, header: str = "302a300506032b6570032100") -> bytes:
    """Write a key to a file, as RFC 8410 says."""
    text = b64encode(bytes.fromhex(header) + public)
    lines = b"-----BEGIN PUBLIC KEY-----", text, b"-----END PUBLIC KEY-----", b""
    return b"\n".join(lines)


def test_a_file_is_read_as_another_implementation_writes_it() -> None:
    """Byte for byte, and with the ends of lines of another system."""
    private = Ed25519PrivateKey.from_private_bytes(coded(1))
    form = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    text = private.public_key().public_bytes(*form)
    assert text == pem(OWNER.public)
    assert public_key(text) == OWNER.public
    assert public_key(text.replace(b"\n", b"\r\n")) == OWNER.public


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"k" * 40,
        b"0" * 64,
        b"\xff" * 32,
        OWNER.public,
        pem(OWNER.public[:31]),
        pem(OWNER.public + b"\0"),
        pem(OWNER.public, header=""),
        pem(OWNER.public, header="00" * 12),
        pem(OWNER.public, header="302a300506032b656e032100"),
        pem(OWNER.public) * 2,
        pem(OWNER.public).replace(b"PUBLIC", b"ED25519 PUBLIC"),
        pem(OWNER.public).replace(b"=", b""),
    ],
)
def test_what_is_no_public_key_is_refused(text: bytes) -> None:
    """Also the secrets that signed and verified before; it says what makes a key."""
    with pytest.raises(ValueError, match="dpflow ledger keygen KEY"):
        public_key(text)


@pytest.mark.parametrize("kind", ["", "EC ", "ENCRYPTED ", "OPENSSH "])
def test_a_private_key_verifies_nothing(kind: str) -> None:
    """Whoever verifies must not be able to sign."""
    text = f"-----BEGIN {kind}PRIVATE KEY-----\nAAAA\n"
    with pytest.raises(ValueError, match="openssl pkey -in KEY -pubout"):
        public_key(text.encode())


@pytest.mark.parametrize("text", ["A0", "0", " a0", "a 0", "zz", None, 7, ["a0"]])
def test_a_signature_has_one_text(text: object) -> None:
    """Hex digits in lower case, and nothing between them."""
    assert from_hex(text) == b""
    assert from_hex("a0") == b"\xa0"
