"""URLs of databases, and the errors that are the same in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpflow.exceptions import (
    ConfigurationError,
    DpflowError,
    LedgerCorrupt,
    LedgerUnavailable,
    how_to_install,
)
from dpflow.interrupts import contextmanager, without_interrupts
from dpflow.ledger.tables.rows import DamagedRow

#: Beginning of the URL of a ledger in memory.
MEMORY = "memory://"


def is_postgres(url: str) -> bool:
    """Return True if a URL names a PostgreSQL database."""
    return url.startswith(("postgresql://", "postgres://"))


@contextmanager
def driver_needed(what: str) -> Iterator[None]:
    """Run a block that imports the driver of PostgreSQL for something.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        yield
    except ImportError as error:
        msg = (
            f"{what} on PostgreSQL needs the driver psycopg 3; "
            f"{how_to_install('postgres')} ({error})"
        )
        raise ConfigurationError(msg) from error


def unavailable(address: str, what: str, **details: Any) -> LedgerUnavailable:
    """Return the error for a ledger that cannot be used now, in the words of `what`."""
    return LedgerUnavailable(f"the ledger {address} {what}", ledger=address, **details)


def unusable(text: str, address: str) -> LedgerUnavailable:
    """Return the error for a transaction that failed for another reason."""
    nothing = "The step did not run and nothing was charged unless `dpflow history` "
    return unavailable(address, f"cannot be used: {text}. {nothing}shows it.")


def busy(
    address: str, holder: str, waited: float, advice: str = ""
) -> LedgerUnavailable:
    """Return the error for a lock that others hold for too long."""
    msg = (
        f"another {holder} holds the lock of the ledger {address}; waited {waited:g} "
        f"s. The step did not run; try again{advice}."
    )
    return LedgerUnavailable(msg, ledger=address, waited=waited)


def refuse_version_4(address: str) -> LedgerUnavailable:
    """Return the error for a ledger whose tables are those of version 4."""
    msg = (
        f"the ledger {address} has version 4, whose tables this dpflow does not read. "
        "Nothing was changed. Run `python -m tools.read_version_4 OLD NEW` in a "
        "checkout of dpflow's repository, where the folder `tools` holds it: it makes "
        "a new ledger with the releases and sums of the old one."
    )
    return LedgerUnavailable(msg, ledger=address)


# Damage


#: What reading garbage raises.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def refuse_damaged(what: str, address: str) -> LedgerCorrupt:
    """Return the error for what is not what it should be."""
    msg = (
        f"the ledger {address} is damaged, or someone edited it. {what[:1].upper()}"
        f"{what[1:]}. The step did not run. `dpflow ledger verify` shows all of it; "
        "restore a backup before any further step (a file: `dpflow ledger restore`)."
    )
    return LedgerCorrupt(msg, ledger=address)


def unreadable(error: Exception, address: str) -> LedgerCorrupt:
    """Return the error for something in a ledger that cannot be read."""
    what = f"something in it cannot be read, or dpflow erred ({error!r:.80})"
    return refuse_damaged(
        str(error) if isinstance(error, DamagedRow) else what, address
    )


@contextmanager
def readable(address: str) -> Iterator[None]:
    """Run a block that reads a ledger; a step's value survives the ledger's damage.

    Args:
        address: The ledger, for messages.

    Raises:
        LedgerCorrupt: If something in the ledger is not what it should be.
    """
    try:
        yield
    except DpflowError:
        raise
    except without_interrupts(*UNREADABLE) as error:
        raise unreadable(error, address) from error
