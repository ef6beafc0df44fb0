"""The ledger's place as a Prefect block: its URL is a secret of the server."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from dpflow.config import BLOCK_PREFIX, url_readers


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
    _documentation_url = HttpUrl("https://docs.prefect.io/v3/concepts/blocks")

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
