"""Carry a ledger of version 4 into a new ledger.

    python -m tools.read_version_4 OLD NEW

Version 4 had one journal for all datasets. This program reads it from a SQLite file or
a PostgreSQL database. It writes the terms, charges, releases, freezes and charges by
hand into the journals of an empty new ledger, in their order. Open charges are
forfeited: they are charged in full. The new ledger has the id and the secret of the old
one, so that pins, release keys and stores of people stay valid. The program completes
the new ledger after it compared all sums and `verify` found nothing. Whether the old
ledger has its newest entries, only its witness says: run `dpflow ledger verify` with
the dpflow that made it first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from operator import add, neg
from typing import Any

from dpflow.exceptions import DpflowError, LedgerCorrupt
from dpflow.ledger.audit.verify import verify
from dpflow.ledger.canonical import canonical, digest
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.opening import find_database
from dpflow.ledger.tables.rows import (
    Account,
    Charge,
    ChargeDataset,
    Dataset,
    Evidence,
    Held,
    PeopleStore,
    Release,
    Run,
    Source,
    Term,
    first_hash,
    name_columns,
)
from dpflow.ledger.tables.transaction import VERSION, new_dataset
from tools.version_4 import (
    OLD_VERSION,
    Amounts,
    OldEntry,
    OldLedger,
    Sums,
    by_dataset,
    dataset_of,
    read_old,
    term_of,
    used_before,
)

#: States of charges by the kind of the entry that ended them.
_STATES = {"settle": "settled", "void": "void", "forfeit": "forfeited"}
_KINDS = {state: kind for kind, state in _STATES.items()}
#: Fields of an older reserve that are columns of a charge now, or no longer needed.
_COLUMNS = {"step", "flow", "flow_run", "key", "release_key", "currency", "owner"}
_COLUMNS |= {"alert_at", "alerts"}
#: Fields of an older end that no decision reads.
_OMITTED = {"alerts", "currency"}


class Carrier:
    """Writes what version 4 holds into the empty tables of a new ledger.

    Args:
        old: The ledger of version 4.
        transaction: A transaction of the new ledger.

    Attributes:
        forfeited: Charges that were open.
    """

    def __init__(self, old: OldLedger, transaction: Any) -> None:
        self.old, self.transaction = old, transaction
        self.forfeited: list[str] = []
        self._ends = {
            entry.charge: entry for entry in old.entries if entry.kind in _STATES
        }
        self._datasets: dict[str, Dataset] = {}
        self._accounts: dict[str, Account] = {}
        self._charges: dict[str, Charge] = {}
        self._releases: dict[str, Release] = {}
        #: The newest row of each key of the old ledger.
        self._newest: dict[str, Any] = {}

    def carry(self) -> None:
        """Write everything, and compare all sums.

        Raises:
            LedgerCorrupt: If an entry is of no kind of version 4, or a sum differs.
        """
        carriers = {
            "open": self._carry_term,
            "tighten": self._carry_term,
            "reserve": self._carry_charge,
            "adjust": self._carry_by_hand,
            "repair": self._carry_by_hand,
            "freeze": self._carry_freeze,
            "unfreeze": self._carry_freeze,
            "withdraw": self._carry_withdrawal,
        }
        # The newest rows of releases, runs and stores of people say the rest.
        known = {*carriers, *_STATES, "pay", "refuse"}
        for entry in self.old.entries:
            if entry.kind not in known:
                msg = f"entry {entry.number} is of an unknown kind, {entry.kind!r}"
                raise LedgerCorrupt(msg)
            if entry.kind in carriers:
                carriers[entry.kind](entry)
            self._newest |= entry.rows
        self._write_releases()
        self._write_runs()
        self._write_sources()
        last = self.old.entries[-1:]
        for entry in last:
            self._write_payments(entry)
            for name in self._datasets:
                self._write_upgrade(name, entry)
        self._compare_sums()

    # Entries

    def _append(
        self,
        name: str,
        kind: str,
        entry: OldEntry,
        body: Mapping[str, Any],
        postings: Mapping[str, tuple[Amounts, Amounts]] | None = None,
        **changes: Any,
    ) -> int:
        """Append an entry to the journal of a dataset; return its number.

        Args:
            name: Name of the dataset.
            kind: Kind of the entry.
            entry: The entry that it carries.
            body: Further facts.
            postings: Changes of accounts.
            **changes: Changed columns of the dataset's row, and columns of the entry.
        """
        old = self.old.identity.ledger
        row = self._datasets.get(name)
        if row is None:
            self.transaction.send([("insert_dataset", new_dataset(old, name))])
            row = Dataset(name, hash=first_hash(old, name))
        charge, step, flow, run = (
            changes.pop(k, None) for k in ("charge", "step", "flow", "run")
        )
        command = digest(canonical([old, entry.number, kind, name]))[:32]
        author = Author(at=entry.at, writer=entry.writer, command=command)
        decision = Decision(author)
        decision.append(
            row._replace(**changes),
            kind,
            postings=postings,
            body=body,
            about=(charge, step, flow, run),
        )
        for account, (settled, held) in (postings or {}).items():
            before = self._accounts.get(account)
            if before is None:
                before = Account(account, (0,) * len(settled), (0,) * len(settled))
            if account in body.get("overdrawn", ()):
                before = before._replace(overdrawn=1)
            after = before.post(settled, held)
            self._accounts[account] = decision.accounts[account] = after
        self.transaction.write(decision)
        self._datasets[name] = decision.datasets[name]
        return self._datasets[name].number

    def _put(self, statement: str, row: Any) -> None:
        self.transaction.send([(statement, name_columns(row))])

    def _carry_term(self, entry: OldEntry) -> None:
        """Write a term that was opened or tightened."""
        name, facts = str(entry.body["book"]), entry.body["term"]
        number = int(facts["number"])
        before = self._datasets.get(name) or Dataset(name)
        revision = 1 if entry.kind == "open" else before.revision + 1
        body = {k: v for k, v in entry.body.items() if k not in ("book", "currency")}
        changes: dict[str, Any] = {"term": number, "revision": revision}
        self._append(name, entry.kind, entry, body, **changes)
        self._put("put_term", Term(name, number, revision, facts))

    def _carry_charge(self, entry: OldEntry) -> None:
        """Write a charge with its end; one that is open is forfeited."""
        name, body, held = str(entry.charge), entry.body, entry.amounts
        end = self._ends.get(name)
        kind = "forfeit" if end is None else end.kind
        settled = held if end is None else end.amounts
        reported = None if end is None or settled == held else end.body.get("reported")
        if end is None:
            self.forfeited.append(name)
        if kind == "void":
            settled = {account: (0,) * len(amount) for account, amount in held.items()}
        request = {k: v for k, v in body.items() if k not in _COLUMNS}
        request["accounts"] = list(body["accounts"])
        if body.get("release_key"):
            request["key_text"] = body["release_key"]
        if body.get("alert_at"):
            request["alerts"] = body["alert_at"]
        charge = Charge(
            name,
            _STATES[kind],
            str(body["owner"]),
            None,
            body["step"],
            body.get("flow"),
            body.get("flow_run"),
            body.get("key"),
            request,
            {},
            reported,
        )
        for dataset, part in by_dataset(held).items():
            place = self._append_pair(dataset, charge, entry, part, settled)
            self._put("insert_charge_dataset", place)
        amounts = {
            account: Held(
                held[account],
                self._accounts[account].version,
                used_before(entry, account),
            )
            for account in request["accounts"]
        }
        self._charges[name] = charge = charge._replace(amounts=amounts)
        self._put("insert_charge", charge)

    def _append_pair(
        self, dataset: str, charge: Charge, entry: OldEntry, held: Sums, settled: Sums
    ) -> ChargeDataset:
        """Append the two entries of a charge to the journal of a dataset."""
        end = self._ends.get(charge.id)
        ended: Mapping[str, Any] = {"reason": "it was open in version 4"}
        if end is not None:
            ended = {k: v for k, v in end.body.items() if k not in _OMITTED}
        columns: dict[str, Any] = {
            "charge": charge.id,
            "step": charge.step,
            "flow": charge.flow,
            "run": charge.run,
        }
        reserved = {k: ((0,) * len(amount), amount) for k, amount in held.items()}
        stated = {"request": digest(canonical(charge.request))}
        first = self._append(dataset, "reserve", entry, stated, reserved, **columns)
        returned = {k: (settled[k], tuple(map(neg, held[k]))) for k in held}
        kind = _KINDS[charge.state]
        last = self._append(dataset, kind, end or entry, ended, returned, **columns)
        return ChargeDataset(dataset, first, charge.id, last, charge.flow, charge.step)

    def _carry_by_hand(self, entry: OldEntry) -> None:
        """Write a charge by hand, or a repair, which charged without a step."""
        charge = self._charges.get(str(entry.charge))
        evidence = entry.body.get("evidence")
        columns: dict[str, Any] = {"charge": entry.charge}
        if charge is not None:
            columns |= {"step": charge.step, "flow": charge.flow, "run": charge.run}
        stated = ("reason", "cost", "policy", "who", "version", "git")
        for name, amounts in by_dataset(entry.amounts).items():
            overdrawn = [k for k in entry.body.get("overdrawn", ()) if k in amounts]
            body = {k: entry.body[k] for k in stated if k in entry.body}
            body |= {"overdrawn": overdrawn} if overdrawn else {}
            body |= {"evidence": evidence} if evidence else {}
            postings = {
                account: (amount, (0,) * len(amount))
                for account, amount in amounts.items()
            }
            number = self._append(name, "adjust", entry, body, postings, **columns)
            if evidence:
                for term in sorted({*map(term_of, amounts)} - {0}):
                    self._put("insert_evidence", Evidence(name, term, evidence, number))
        if charge is not None:
            held = dict(charge.amounts)
            for account, amount in entry.amounts.items():
                before = held[account].added or (0,) * len(amount)
                added = tuple(map(add, before, amount))
                held[account] = held[account]._replace(added=added)
            self._charges[charge.id] = charge._replace(amounts=held)
            self._put("update_charge", self._charges[charge.id])

    def _carry_freeze(self, entry: OldEntry) -> None:
        """Write a freeze, or its end."""
        frozen = entry.body.get("frozen") if entry.kind == "freeze" else None
        body = {k: v for k, v in entry.body.items() if k in ("who", "reason")}
        name = str(entry.body["book"])
        self._append(name, entry.kind, entry, {**body, "frozen": frozen}, frozen=frozen)

    def _carry_withdrawal(self, entry: OldEntry) -> None:
        """Write a withdrawal into the journal of the release's dataset."""
        charge = self._charges[str(entry.charge)]
        body = {k: v for k, v in entry.body.items() if k != "books"}
        name = min(charge.request["datasets"])
        columns: dict[str, Any] = {"charge": charge.id, "step": charge.step}
        self._append(name, "withdraw", entry, body, **columns)

    # Rows that the newest keys say

    def _rows_of(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """Yield the newest rows of the keys that begin with a text."""
        for key, row in self._newest.items():
            if key.startswith(prefix):
                yield key.removeprefix(prefix), row

    def _write_releases(self) -> None:
        """Write releases with their values; a claim of an open charge is free."""
        for key, row in self._rows_of("release/"):
            charge = self._charges[row["charge"]]
            is_free = row["state"] in ("claimed", "free")
            release = Release(
                key,
                charge.request.get("key_text", ""),
                min(charge.request["datasets"]),
                charge.step,
                charge.id,
                "free" if is_free else row["state"],
                None if is_free else row["digest"],
                charge.request.get("arguments"),
                None,
                self.old.values.get(key) if row["state"] == "settled" else None,
            )
            self._put("put_release", release)

    def _write_runs(self) -> None:
        """Write runs that odometers halted."""
        for name, row in self._rows_of("run/"):
            for dataset in sorted({dataset_of(account) for account in row["halted"]}):
                halted = [k for k in row["halted"] if dataset_of(k) == dataset]
                self._put(
                    "put_run", Run(name, dataset, None, row["refusals"], tuple(halted))
                )

    def _write_sources(self) -> None:
        """Write the sources that datasets claim."""
        for name, claims in self._rows_of("claim/"):
            dataset, population = next(iter(sorted(claims.items())))
            self._put("insert_source", Source(name, dataset, population or None))

    def _write_payments(self, entry: OldEntry) -> None:
        """Write the first and the newest payment of each store of people."""
        for account, row in self._rows_of("people/"):
            for charge in dict.fromkeys((row["first"], row["newest"])):
                body = {"people": account}
                self._append(dataset_of(account), "pay", entry, body, charge=charge)
            store = PeopleStore(account, row["first"], row["newest"])
            self._put("put_people_store", store)

    def _write_upgrade(self, name: str, entry: OldEntry) -> None:
        """Write the last entry of a journal, with the alerts that were raised."""
        alerts = {}
        for account, row in self._rows_of("account/"):
            raised = {k for flags in row[3:] for k in flags.get("alerts", ())}
            if raised and dataset_of(account) == name:
                alerts[account] = max(raised, key=Fraction)
                after = self._accounts[account]._replace(alerted=alerts[account])
                self._accounts[account] = after
                self._put("put_account", after)
        body = {"from": str(OLD_VERSION), "to": str(VERSION), "alerts": alerts}
        self._append(name, "upgrade", entry, body)

    def _compare_sums(self) -> None:
        """Compare each account with its sums in the old ledger.

        Raises:
            LedgerCorrupt: If one differs.
        """
        for account, row in self._rows_of("account/"):
            after = self._accounts.get(account)
            if after is None or after.settled != tuple(map(add, row[1], row[2])):
                msg = f"account {account!r} has another sum than in the old ledger"
                raise LedgerCorrupt(msg)


def carry_ledger(old: str, new: str) -> Carrier:
    """Carry a ledger of version 4 into a new one.

    Args:
        old: Place of the ledger of version 4.
        new: URL of the new ledger, at an empty place.

    Raises:
        ConfigurationError: If something is at the new place, or no ledger of version 4
            at the old one.
        LedgerCorrupt: If the old ledger is damaged; then there is no new one.
    """
    source = read_old(old)
    kind, where = find_database(new if "://" in new else f"sqlite:///{new}")
    target: Any = kind.create(where, source.identity, source.secret, complete=0)
    try:
        target.is_copy = True
        with target.transaction() as transaction:
            carrier = Carrier(source, transaction)
            carrier.carry()
        if bad := verify(Ledger(target, target.owners())).bad:
            msg = f"the new ledger is not whole: {bad[0]}. Nothing was carried."
            raise LedgerCorrupt(msg)
        target.complete()
    except BaseException:
        target.remove()
        raise
    target.close()
    return carrier


def main(arguments: Sequence[str]) -> int:
    """Run the program."""
    try:
        old, new = arguments
    except ValueError:
        sys.stderr.write("usage: python -m tools.read_version_4 OLD NEW\n")
        return 2
    try:
        carrier = carry_ledger(old, new)
    except DpflowError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(
        f"The new ledger has the charges and releases of version {OLD_VERSION}; "
        f"{len(carrier.forfeited)} open charges were forfeited, and stay charged in "
        "full. Remove the old ledger, so that no step charges it. Set "
        "DPFLOW_LEDGER_URL to the new one. Move the old witness away, and run `dpflow "
        "ledger trust --reason TEXT`.\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
