"""Files of these tests need no disk: what dies are processes, not machines."""

from tests.in_memory import tmp_path  # noqa: F401
