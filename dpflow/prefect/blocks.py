"""The ledger's place as a Prefect block: its URL is a secret of the server."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from dpflow.config import BLOCK_PREFIX, url_readers
from dpflow.interrupts import suppress


def project_page(path: str) -> HttpUrl | None:
    """Return a page of the repository; None if the distribution names none."""
    # A checkout that is not installed has no metadata.
    with suppress(PackageNotFoundError):
        lines = metadata("prefect-dpflow").get_all("Project-URL") or ()
        urls = dict(line.split(", ", 1) for line in lines)
        if source := urls.get("Source"):
            return HttpUrl(f"{source}/{path}")
    return None


class DpflowLedger(Block):
    """The place of dpflow's ledger, stored as a secret.

    Attributes:
        url: URL of the ledger, password included.

    Examples:
        Load the block and say where the ledger is:
        ```python
        from dpflow.prefect.blocks import DpflowLedger

        ledger = DpflowLedger.load("BLOCK_NAME")
        ```

        A project uses it by name, in its pyproject.toml:
        ```toml
        [tool.dpflow]
        ledger_url = "prefect-block:BLOCK_NAME"
        ```
    """

    _block_type_name = "dpflow ledger"
    _block_type_slug = "dpflow-ledger"
    _logo_url = project_page("raw/main/docs/pictures/logo.png")
    _documentation_url = project_page("blob/main/docs/reference/configuration.md")

    url: SecretStr = Field(
        default=...,
        description="URL of the ledger, such as postgresql://user:password@host/db.",
        examples=["postgresql://dpflow:secret@db.internal/privacy"],
    )


def ledger_url(name: str) -> str:
    """Return the URL that a block holds.

    Args:
        name: Name of the block document.

    Raises:
        ValueError: If Prefect knows no such block.
    """
    # Without it, an event loop around the caller gets a coroutine back.
    block: Any = DpflowLedger.load(name, _sync=True)  # type: ignore[call-arg]
    return str(block.url.get_secret_value())


url_readers[BLOCK_PREFIX] = ledger_url
