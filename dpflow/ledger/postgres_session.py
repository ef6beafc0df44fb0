"""One open transaction on a PostgreSQL connection, in as few trips as it may."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from psycopg import Cursor, Pipeline
from psycopg.rows import DictRow

from dpflow.exceptions import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.database import Row, forget_changed
from dpflow.ledger.postgres_server import Connection, postgres_statements

#: Statements whose answer says nothing that an error would not say.
_SILENT = {"savepoint", "rollback_to_savepoint", "release_savepoint"}

#: Which answers a change makes old: those about the row that it names so. Answers that
#: are not listed here, and all answers after another change, are asked for anew.
_SPOILED_BY: dict[str, dict[str, str]] = {
    "savepoint": {},
    "release_savepoint": {},
    "open_term": {"newest_term": "dataset"},
    "open_account": {"read_account": "id"},
    "move_account": {"read_account": "id"},
    "append_entry": {"newest_entries": "account", "reserved_amount": "account"},
    "note_alert": {},
    "note_granted": {"read_granted": "account"},
    "note_refused": {"halting_accounts": "run"},
    "open_reservation": {"read_reservation": "id"},
    "close_reservation": {"read_reservation": "id"},
    "claim_release": {"read_release": "release_key"},
    "settle_release": {"read_release": "release_key"},
    "drop_claim": {"read_release": "release_key"},
}
_KEPT = {question for spoiled in _SPOILED_BY.values() for question in spoiled}

_Values = tuple[object, ...]
_Result = Cursor[DictRow]


class PostgresSession:
    """Runs the ledger's statements inside one transaction.

    The connection is in pipeline mode: statements are sent in order and answered in
    order, and only a question waits for its answer. What a transaction changed is
    checked before it commits.

    Args:
        connection: Outside a transaction.
        pipeline: Its pipeline, entered.
        place: The ledger's place, for messages.
    """

    #: Before `lock` answers, others write.
    exclusive = False

    def __init__(self, connection: Connection, pipeline: Pipeline, place: str) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._place = place
        self._unchecked: list[tuple[_Result, Callable[[_Result], None]]] = []
        self._ahead: dict[str, dict[_Values, _Result]] = {}
        self._answers: dict[str, dict[_Values, list[Row]]] = {}
        self._committing: _Result | None = None
        self._locked: set[str] = set()
        self.kept: dict[str, Any] = {}

    def lock(self, datasets: Iterable[str]) -> None:
        """Keep other writers from these datasets until the transaction ends."""
        names = sorted(set(datasets))
        # What was read before the lock may be another's by now.
        self._forget()
        if not names:
            return
        if not self._connection.lockable.issuperset(names):
            self._send("make_lockable", {"names": names})

        def check(rows: list[Row]) -> None:
            found = [row["name"] for row in rows]
            self._locked.update(found)
            if found != names:
                self._connection.lockable.clear()
                msg = f"could not lock {names} in the ledger {self._place}: got {found}"
                raise LedgerUnavailable(msg, ledger=self._place)

        self.expect("lock", check, names=names)

    def rows(self, statement: str, **values: object) -> list[Row]:
        """Run a named statement and return its rows."""
        asked = _key(values)
        known = self._answers.get(statement, {}).get(asked)
        if known is not None:
            return known
        result = self._ahead.get(statement, {}).pop(asked, None)
        if result is None:
            result = self._send(statement, values)
        self._wait(result)
        found: list[Row] = list(result.fetchall())
        self._check_answered()
        if statement in _KEPT:
            self._answers.setdefault(statement, {})[asked] = found
        return found

    def change(self, statement: str, **values: object) -> int:
        """Run a named statement and return how many rows it changed."""
        self._spoil(statement, values)
        result = self._send(statement, values)
        if statement in _SILENT:
            return 0
        self._wait(result)
        self.check()
        return result.rowcount

    def post(self, statement: str, **values: object) -> None:
        """Run a named statement that must change one row, without waiting for it."""
        self._spoil(statement, values)

        def check(result: _Result) -> None:
            self._wait(result)
            if result.rowcount != 1:
                msg = (
                    f"the ledger {self._place} is inconsistent: {statement} found no "
                    "row to change"
                )
                raise LedgerCorrupt(msg, ledger=self._place)

        self._later(statement, values, check)

    def soon(self, statement: str, **values: object) -> None:
        """Ask already what `rows` will ask next, to wait once for all of it."""
        asked = _key(values)
        ahead = self._ahead.setdefault(statement, {})
        if asked not in ahead and asked not in self._answers.get(statement, {}):
            ahead[asked] = self._send(statement, values)

    def run(self, script: str) -> None:
        """Run a migration, whose every statement ends with its line."""
        for statement in _split(script):
            self._connection.execute(statement.encode())
        self._pipeline.sync()

    def expect(
        self, statement: str, check: Callable[[list[Row]], None], **values: object
    ) -> None:
        """Ask, and check the rows when they come, before the transaction commits."""

        def check_rows(result: _Result) -> None:
            self._wait(result)
            check(list(result.fetchall()))

        self._later(statement, values, check_rows)

    def _later(
        self,
        statement: str,
        values: dict[str, object],
        check: Callable[[_Result], None],
    ) -> None:
        self._unchecked.append((self._send(statement, values), check))

    def check(self) -> None:
        """Check every result that has not been checked yet, waiting if need be."""
        unchecked, self._unchecked = self._unchecked, []
        for result, check in unchecked:
            check(result)

    def _check_answered(self) -> None:
        """Check the results that have come; the server answers in order."""
        unchecked = self._unchecked
        answered = 0
        while answered < len(unchecked) and unchecked[answered][0].pgresult is not None:
            result, check = unchecked[answered]
            answered += 1
            check(result)
        self._unchecked = unchecked[answered:]

    def begin(self, how: str) -> None:
        """Begin a transaction; the first question brings the answer."""
        self._connection.execute(how.encode())

    def commit(self) -> None:
        """Check everything and ask to commit; the pipeline's end brings the answer."""
        self.check()
        self._committing = self._connection.execute(b"COMMIT")

    def check_committed(self) -> None:
        """Check that the transaction did commit.

        Raises:
            LedgerUnavailable: If the server rolled back instead.
        """
        result = self._committing
        if result is None or result.statusmessage != "COMMIT":
            msg = (
                f"the ledger {self._place} did not commit but answered "
                f"{result and result.statusmessage}; nothing was charged"
            )
            raise LedgerUnavailable(msg, ledger=self._place)
        # Committed, these rows are there for good.
        self._connection.lockable.update(self._locked)

    def _wait(self, result: _Result) -> None:
        """Wait for a result, and for all that were sent before it."""
        if result.pgresult is None:
            # Not a mere flush: after it, the server's timer for idle transactions runs.
            self._pipeline.sync()

    def _spoil(self, statement: str, values: dict[str, Any]) -> None:
        """Forget the answers that a change makes old."""
        forget_changed(self.kept, statement, values)
        spoiled = _SPOILED_BY.get(statement)
        if spoiled is None:
            self._forget()
            return
        for name in self._ahead.keys() - _KEPT:
            del self._ahead[name]
        for name, parameter in spoiled.items():
            subject = values[parameter]
            for known in (self._ahead.get(name, {}), self._answers.get(name, {})):
                for asked in [asked for asked in known if subject in asked]:
                    del known[asked]

    def _forget(self) -> None:
        """Forget all that was read."""
        self._ahead.clear()
        self._answers.clear()
        self.kept.clear()

    def _send(self, statement: str, values: dict[str, Any]) -> _Result:
        sql = postgres_statements()[statement]
        return self._connection.execute(sql.encode(), values)


def _key(values: dict[str, object]) -> _Values:
    """Return the values of a question, in the order of their names."""
    return tuple(values[name] for name in sorted(values))


def _split(script: str) -> list[str]:
    """Split a migration into statements; bodies between $$ hold semicolons too."""
    found, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line.partition("--")[0].rstrip() + "\n"
        if current.rstrip().endswith(";") and current.count("$$") % 2 == 0:
            found.append(current.strip())
            current = ""
    return found
