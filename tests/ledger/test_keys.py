"""Who verifies cannot forge; and how keys are named, read and refused."""

from __future__ import annotations

import hmac
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpflow.exceptions import ConfigurationError
from dpflow.ledger import Ledger, create_ledger, open_ledger
from dpflow.ledger.audit.export import export_head, journal_rows, verify_export
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.checkpoint import message
from dpflow.ledger.keys import LedgerKey, key_from_text, ledger_key
from tests.ledger.audit.books import points, rewrite
from tests.ledger.support import granted, read, url
from tests.signing import key_file, key_of

KEY, PUBLIC = key_of("k"), LedgerKey(key_of("k").public)
ORDER = 2**252 + 27742317777372353535851937790883648493


# Forging


def by_hash(secret: bytes) -> Any:
    """Sign as it was done when one secret signed and verified."""

    def sign(text: bytes) -> bytes:
        return hmac.digest(secret, text, "sha256") + hmac.digest(secret, text, "sha256")

    return sign


def second_form(text: bytes) -> bytes:
    """Return a signature of the key's owner, in another form."""
    made = key_of("k").sign(text)
    again = int.from_bytes(made[32:], "little") + ORDER
    return made[:32] + again.to_bytes(32, "little")


def by_the_public_bytes(text: bytes) -> bytes:
    """Sign as the owner would whose private key is the public key's bytes."""
    return Ed25519PrivateKey.from_private_bytes(PUBLIC.public).sign(text)


#: What somebody signs with who has the public key, and all that was ever signed.
FORGED = {
    "a secret that is the public key": by_hash(PUBLIC.public),
    "a private key that is the public key": by_the_public_bytes,
    "another private key": key_of("x").sign,
    "nothing at all": lambda _: bytes(64),
    "a signature of something else": lambda _: key_of("k").sign(b"grant x"),
    "the same signature in another form": second_form,
}


def forge(ledger: Ledger, path: Path, sign: Any) -> None:
    """Say that another did it all, fit the chain, and sign its checkpoint anew."""
    rewrite(path, lambda row: row.update(writer="eve@x"))
    hashes = dict(read(path, "SELECT number, hash FROM entry"))

    def change(row: dict[str, Any]) -> None:
        if row["kind"] == "checkpoint":
            point = row["body"]["signed"]
            point["hash"] = hashes[point["number"]]
            point["signature"] = sign(signed_text(ledger, point)).hex()

    rewrite(path, change)


def signed_text(ledger: Ledger, point: dict[str, Any]) -> bytes:
    """Return what a first checkpoint's signature is over."""
    return message(ledger.id, {**point, "count": 1, "previous": ""})


def exported(ledger: Ledger, place: Path) -> Path:
    """Write an export of a ledger."""
    lines = [export_head(ledger), *journal_rows(ledger)]
    place.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return place


@pytest.fixture
def charged(tmp_path: Path) -> Ledger:
    """Return a ledger without a witness, charged and signed once."""
    ledger = create_ledger(url(tmp_path / "ledger.db"), witness="none")
    for _ in range(3):
        ledger.settle(granted(ledger, "0.1"))
    assert verify(ledger, key=KEY, sign=True).bad == []
    assert verify(ledger, key=PUBLIC).bad == []
    return ledger


@pytest.mark.parametrize("how", FORGED)
def test_with_the_public_key_nobody_makes_a_checkpoint(charged, tmp_path, how):
    """Not even who may write the whole ledger; the auditor sees it, too."""
    forge(charged, Path(charged.place), FORGED[how])
    found = verify(charged, key=PUBLIC).bad
    assert "its checkpoint was forged" in str(found[0])
    _, report = verify_export(exported(charged, tmp_path / "e.jsonl"), PUBLIC)
    (bad,) = map(str, report.bad)
    assert "forged, or signed with another key" in bad


def test_with_the_private_key_the_same_passes(charged, tmp_path):
    """The control: nothing but the signature tells; who verifies signs nothing new."""
    path = Path(charged.place)
    forge(charged, path, key_of("k").sign)
    assert verify(charged, key=PUBLIC).bad == []
    _, report = verify_export(exported(charged, tmp_path / "e.jsonl"), PUBLIC)
    assert (report.bad, report.checkpoints, report.signed) == ([], 1, True)
    opened = open_ledger(url(path), witness="none")
    opened.settle(granted(opened, "0.1"))
    for key, count in ((PUBLIC, 1), (KEY, 2)):
        assert verify(opened, key=key, sign=True).fine
        assert len(points(path)) == count


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows.pop(2), "an entry is missing"),
        (lambda rows: rows[2].update(writer="eve"), "its content"),
        (lambda rows: rows.pop(), ""),
        (lambda rows: rows.__delitem__(slice(1, None)), ""),
    ],
)
def test_a_forged_export_is_found(charged, tmp_path, change, problem):
    """An edited or missing entry breaks the chain; only the end may be missing."""
    place = exported(charged, tmp_path / "e.jsonl")
    assert verify_export(place, PUBLIC)[1].fine
    rows = [json.loads(line) for line in place.read_text("utf-8").splitlines()]
    change(rows)
    place.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    _, report = verify_export(place, PUBLIC)
    ended = {each["kind"] for each in rows[1:]}
    if problem:
        assert problem in str(report.bad[0])
    else:
        # A cut journal is an older one; without its checkpoint the key finds it.
        assert bool(report.bad) is ("checkpoint" not in ended)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"dpflow_export": 9}', "x"])
def test_a_file_that_is_no_export_is_refused(tmp_path, text):
    """The error names the command that writes one."""
    (tmp_path / "e.jsonl").write_text(text, "utf-8")
    with pytest.raises(ConfigurationError, match="dpflow ledger export"):
        verify_export(tmp_path / "e.jsonl")


# Naming a key


def test_a_key_is_named_or_there_is_none(tmp_path, monkeypatch):
    """Relative to the project's root, as all that is configured; either key will do."""
    monkeypatch.delenv("DPFLOW_LEDGER_KEY", raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert ledger_key() is None
    key_file(tmp_path, "k")
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", "key-k")
    found = ledger_key()
    assert found is not None
    assert found.sign is not None
    assert PUBLIC.verifies(b"x", found.sign(b"x"))
    assert "sign" not in repr(found)
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", key_file(tmp_path, "k", public=True))
    assert ledger_key() == PUBLIC


def test_a_secret_in_place_of_a_path_is_not_shown(tmp_path, monkeypatch):
    """Nor by the error's causes; it says what to set instead."""
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", "k" * 40)
    with pytest.raises(ConfigurationError, match="dpflow ledger sign") as caught:
        ledger_key()
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert "kk" not in str(caught.value)
    (tmp_path / "key").write_text("k" * 40, "utf-8")
    monkeypatch.setenv("DPFLOW_LEDGER_KEY", str(tmp_path / "key"))
    with pytest.raises(ConfigurationError, match="no key of Ed25519") as caught:
        ledger_key()
    assert "kk" not in str(caught.value)


def _with_passphrase() -> bytes:
    how = form.BestAvailableEncryption(b"secret")
    return Ed25519PrivateKey.generate().private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, how
    )


def _of_another_kind() -> bytes:
    return generate_private_key(SECP256R1()).private_bytes(
        form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
    )


@pytest.mark.parametrize(
    "text",
    [_with_passphrase(), _of_another_kind(), b"-----BEGIN PRIVATE KEY-----\nAAAA\n"],
    ids=["passphrase", "curve", "garbage"],
)
def test_another_private_key_is_refused(text):
    """With what makes one that fits."""
    with pytest.raises(ValueError, match="dpflow ledger sign"):
        key_from_text(text)


def test_a_key_of_openssl_will_do(tmp_path):
    """What `openssl genpkey` writes signs, and what `openssl pkey` prints verifies."""
    place = tmp_path / "key"
    made = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(place)]
    subprocess.run(made, check=True, capture_output=True)
    shown = ["openssl", "pkey", "-in", str(place), "-pubout"]
    public = subprocess.run(shown, check=True, capture_output=True).stdout
    private = key_from_text(place.read_bytes())
    assert private.sign is not None
    assert key_from_text(public) == LedgerKey(private.public)
    assert private.verifies(b"x", private.sign(b"x"))
    assert not private.verifies(b"y", private.sign(b"x"))
