"""Metadata of a distribution: project URLs and absolute links of the README.

    DPFLOW_REPOSITORY=https://HOST/OWNER/NAME python -m build

Without the variable a distribution has no URLs, and its README has no relative links.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]*)\)")


def long_description(text: str, repository: str) -> str:
    """Return a README whose relative links are absolute, or plain text."""
    if not repository:
        return _RELATIVE.sub(r"\2", text)
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{repository}/raw/main/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{repository}/blob/main/", text)


class Metadata(MetadataHookInterface):
    """Adds the README and the URLs, which depend on the place of the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and `urls` of the project."""
        repository = os.environ.get("DPFLOW_REPOSITORY", "").rstrip("/")
        text = Path(self.root, "README.md").read_text("utf-8")
        text = long_description(text, repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {
            name: f"{repository}{path}"
            for name, path in {
                "Source": "",
                "Documentation": "/tree/main/docs",
                "Changelog": "/blob/main/CHANGELOG.md",
                "Issues": "/issues",
            }.items()
            if repository
        }
