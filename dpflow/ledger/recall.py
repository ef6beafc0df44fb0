"""What a SQLite connection knows of its ledger without asking again.

An answer stands for as long as nobody changes what it was read from. What others
commit, SQLite tells by a number (`PRAGMA data_version`), and then everything is
forgotten; what this connection changes itself is forgotten by name. A transaction that
fails ends its connection, and with it what that knew. SQLite keeps the pages of the
file in its own memory under the same condition, so that no edit goes unseen by this
that would have been seen by asking. An account moves only from the number of entries
that is remembered, so that even a wrong memory could not charge it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpflow.ledger.database import KNOWN_CHANGES, Row, forget_changed

#: Beyond so many answers, all are forgotten.
_MOST = 4096

#: Questions that are asked for each charge and answered alike for most.
_ASKED_AGAIN = frozenset(
    {
        "read_ledger",
        "newest_term",
        "read_granted",
        "halting_accounts",
        "preflight_of_run",
        "refusals_of_run",
    }
)
#: What its own charge tells a connection, and its settlement asks.
_OF_A_CHARGE = ("read_reservation", "reserved_amount")

#: Which answers a change makes old: question, and what names it among the change's
#: parameters, in the order of the question's own names. After a change that is not
#: known at all, everything is forgotten.
_SPOILS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "open_term": (("newest_term", ("dataset",)),),
    "note_granted": (("read_granted", ("account", "step")),),
    "note_refused": (
        ("halting_accounts", ("run",)),
        ("refusals_of_run", ("run",)),
    ),
    # It stays true, but a charge that has ended is not asked about again.
    "append_entry": (("reserved_amount", ("account", "reservation")),),
    "close_reservation": (("read_reservation", ("id",)),),
    "open_preflight": (
        ("read_reservation", ("reservation",)),
        ("preflight_of_run", ("run",)),
    ),
}

_Values = tuple[object, ...]


class Recall:
    """The answers and accounts that one connection knows.

    Attributes:
        accounts: By id, each checked against its newest entry, or written here.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, Any] = {}
        self._answers: dict[str, dict[_Values, list[Row]]] = {
            question: {} for question in (*_ASKED_AGAIN, *_OF_A_CHARGE)
        }
        self._version: object = None

    def begin(self, version: object) -> None:
        """Begin a transaction.

        Args:
            version: Differs from that of the last one if others have committed since.
        """
        size = len(self.accounts) + sum(map(len, self._answers.values()))
        if version != self._version or size > _MOST:
            self.clear()
        self._version = version

    def rows(
        self,
        statement: str,
        values: Mapping[str, object],
        ask: Callable[[str, Mapping[str, object]], list[Row]],
    ) -> list[Row]:
        """Return the rows of a question, asking only if they are not known."""
        known = self._answers.get(statement)
        if known is None:
            return ask(statement, values)
        asked = tuple(values[name] for name in sorted(values))
        found = known.get(asked)
        if found is None:
            found = ask(statement, values)
            # A run's preflight changes in many ways; most runs have none.
            again = statement != "preflight_of_run" or not found
            if again and statement in _ASKED_AGAIN:
                known[asked] = found
        return found

    def changing(self, statement: str, values: Mapping[str, Any]) -> None:
        """Forget what a change makes old; before it is made."""
        if statement not in KNOWN_CHANGES:
            self.clear()
            return
        before = self.accounts.get(values.get("account", ""))
        forget_changed(self.accounts, statement, values)
        for question, names in _SPOILS.get(statement, ()):
            asked = tuple(values[name] for name in names)
            self._answers[question].pop(asked, None)
        self._learn(statement, values, before)

    def _learn(self, statement: str, values: Mapping[str, Any], before: Any) -> None:
        """Keep the rows of a charge, which its settlement asks for."""
        if statement == "open_reservation":
            row = {**values, "state": "open", "run": None}
            self._answers["read_reservation"][values["id"],] = [row]
        elif statement == "append_entry" and values["kind"] == "reserve" and before:
            row = {**values, "previous": before.head}
            asked = values["account"], values["reservation"]
            self._answers["reserved_amount"][asked] = [row]

    def clear(self) -> None:
        """Forget everything."""
        self.accounts.clear()
        for known in self._answers.values():
            known.clear()
