"""Hooks around all that a ledger asks of its storage, and around SQL statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dpflow.ledger.storage.transaction import Storage

#: Hears the name of a call, or a statement; what it raises, the call raises.
Hook = Callable[[str], None]


class Crash(BaseException):
    """The process ends here; nothing catches it."""


def nothing(what: str) -> None:
    """Let a call be."""


class Hooks:
    """Two hooks, which tests replace: one before each call, and one after it."""

    def __init__(self) -> None:
        self.quiet()

    def quiet(self) -> None:
        """Let every call be."""
        self.before: Hook = nothing
        self.after: Hook = nothing

    def around(self, what: str, call: Callable[[], Any]) -> Any:
        """Make a call between the hooks."""
        self.before(what)
        found = call()
        self.after(what)
        return found


class HookedStorage:
    """Any storage, whose protocol runs between hooks.

    BEGIN and COMMIT are calls like `load` and `store`. A hook that raises before COMMIT
    rolls back; one that raises after it makes the commit's outcome unknown.
    """

    def __init__(self, inner: Storage, hooks: Hooks | None = None) -> None:
        self.inner, self.hooks = inner, hooks or Hooks()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @contextmanager
    def write(self) -> Iterator[Any]:
        """Run a block of the inner storage between hooks."""
        with self._around(self.inner.write) as transaction:
            yield transaction

    @contextmanager
    def read(self) -> Iterator[Any]:
        """Run a block of the inner storage between hooks."""
        with self._around(self.inner.read) as reading:
            yield reading

    @contextmanager
    def _around(self, begin: Callable[[], Any]) -> Iterator[Any]:
        self.hooks.before("BEGIN")
        with begin() as within:
            self.hooks.after("BEGIN")
            yield HookedTransaction(within, self.hooks)
            self.hooks.before("COMMIT")
        self.hooks.after("COMMIT")


class HookedTransaction:
    """A transaction that calls its storage's hooks around whatever is asked of it."""

    def __init__(self, within: Any, hooks: Hooks) -> None:
        self._within, self._hooks = within, hooks

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._within, name)
        if not callable(real):
            return real

        def call(*values: Any, **named: Any) -> Any:
            return self._hooks.around(name, lambda: real(*values, **named))

        return call


class Wire:
    """A connection whose every statement runs between hooks."""

    def __init__(self, connection: sqlite3.Connection, hooks: Hooks) -> None:
        self._connection, self._hooks = connection, hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> Any:
        """Run a statement between the hooks."""
        self._hooks.before(sql)
        cursor = self._connection.execute(sql, *values)
        try:
            self._hooks.after(sql)
        except BaseException:
            # The driver leaves no statement running when it raises.
            cursor.close()
            raise
        return cursor


def nth(number: int, error: BaseException, *, once: bool) -> Hook:
    """Return a hook that raises at the n-th call, or from there on."""
    count = 0

    def hook(_: str) -> None:
        nonlocal count
        count += 1
        if count == number + 1 or (count > number and not once):
            raise error

    return hook
