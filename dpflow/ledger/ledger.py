"""The operations of a ledger, and the shell around each decision.

    lock datasets -> read rows -> decide -> write rows and entries, COMMIT -> witness

A step may run only after `reserve` answered `Granted`, which is after the witness has
the charge. A charge that is never settled stays in full, permanently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dpflow.accounting.costs.base import Cost, Outcome
from dpflow.accounting.rules.tally import Tally
from dpflow.exceptions import DpflowError, LedgerError, LedgerUnavailable
from dpflow.interrupts import suppress
from dpflow.ledger.account_ids import split
from dpflow.ledger.canonical import canonical, digest
from dpflow.ledger.decisions.charges_by_hand import (
    ChargeByHand,
    Posted,
    decide_amendment,
    decide_prior,
)
from dpflow.ledger.decisions.decision import Author, Decision
from dpflow.ledger.decisions.freezes import decide_freeze
from dpflow.ledger.decisions.gates import Gate
from dpflow.ledger.decisions.payments import Payer, decide_payment, find_payer
from dpflow.ledger.decisions.policy_changes import (
    Application,
    Proposal,
    decide_application,
    propose_application,
)
from dpflow.ledger.decisions.releases import decide_withdrawal, find_release
from dpflow.ledger.decisions.reserve import (
    Refused,
    decide_refusal_of_run,
    decide_reserve,
)
from dpflow.ledger.decisions.settlement import End, decide_end
from dpflow.ledger.requests import Answer, Granted, Replayed, Request, Settled
from dpflow.ledger.shell import Shell, answer_or_raise, refuse_step
from dpflow.ledger.tables.loaded import Rows
from dpflow.ledger.tables.loading import (
    Scope,
    find_charge_scope,
    find_scope,
    load_rows,
    read_claim,
)
from dpflow.ledger.tables.rows import Charge
from dpflow.policy import Policy


class Ledger(Shell):
    """The operations on one ledger."""

    # The life of a charge

    def reserve(self, request: Request) -> Answer:
        """Hold a step's worst case on every account, or replay, or refuse.

        Raises:
            BudgetRefused: If a gate does not admit the step; nothing is charged.
            PolicyChanged: If the policy file differs from the ledger's pinned copy.
            UnsupportedCost: If a theorem has no price for the cost.
            ReservationConflict: If the id or the release key means something else.
            LedgerUnavailable: If the ledger did not answer; the step may not run.
        """
        if (why := self.database.unwritable) is not None:
            return self._check_answer(self._replay_only(request, why))
        decision, rows = self._transact(
            find_scope(request),
            lambda rows, author: self._decide_reserve(rows, request, author),
        )
        if isinstance(decision.answer, Granted):
            # Another sending of the request may have made the charge.
            written = (rows.charge, *(row for _, row in decision.changes))
            charges = (row for row in written if isinstance(row, Charge))
            self._charges.update((charge.id, charge) for charge in charges)
        try:
            self.watch.record(decision, rows, request.key_text)
        except LedgerError:
            if isinstance(decision.answer, Granted):
                # No body has started.
                with suppress(DpflowError):
                    self.void(decision.answer.reservation, reason="not witnessed")
            raise
        answer: Answer = answer_or_raise(decision.answer)
        return self._check_answer(answer)

    def _decide_reserve(
        self, rows: Rows, request: Request, author: Author
    ) -> Decision | Refused:
        """Decide a request, with whether the claimant of its release still runs."""
        self._find_claimant(rows, request)
        return decide_reserve(rows, request, author)

    def _find_claimant(self, rows: Rows, request: Request) -> None:
        """Find out whether the process that claims a release still runs."""
        release, charge = rows.release, rows.release_charge
        if release is not None and charge is not None and release.state == "claimed":
            own = charge.owner == request.owner
            rows.claimant_is_alive = own or self.owners.alive(charge.owner)

    def settle(
        self,
        reservation: str,
        *,
        outcome: str = "completed",
        value: str | None = None,
        body: Mapping[str, Any] | None = None,
        reported: Outcome | None = None,
        shape: Mapping[str, Any] | None = None,
    ) -> Settled:
        """Post a charge and, in the same transaction, keep the step's release.

        A step that reports its outcome is charged what its accounts' theorems allow
        for that, and never more than was reserved; any other, in full.

        Args:
            reservation: The id that was granted.
            outcome: "completed", or "failed": an error is an output and costs as much.
            value: The encoded output; None keeps nothing to replay.
            body: Further facts for the journal.
            reported: Number of sub-steps that ran, or cell of the mechanism's output.
            shape: Length, groups and columns of the output.

        Returns:
            The digest of the stored value, and the thresholds that were crossed.

        Raises:
            ReservationConflict: If another command ended the charge.
            LedgerUnavailable: If the ledger did not answer; the charge stays held.
        """
        value_digest = (
            None if value is None else self.digests.of_value(reservation, value)
        )
        # The same for each sending, so that a late one finds what an earlier one did.
        sending = ["settle", reservation, outcome, value_digest, reported]
        fields = {**(body or {}), "outcome": outcome, "digest": value_digest}
        owner = self.owners.mine()
        end = End("settle", reservation, owner, fields, reported, value, shape)
        return self._end(end, digest(canonical(sending))[:32])

    def void(self, reservation: str, *, reason: str) -> None:
        """Give a charge back whose body certainly never started.

        Only the process that reserved knows that, so only it may void.

        Raises:
            ReservationConflict: If another process reserved it, or it has ended.
            LedgerUnavailable: If the ledger did not answer; it may stay held.
        """
        self._end(End("void", reservation, self.owners.mine(), {"reason": reason}))

    def forfeit(self, reservation: str, *, reason: str) -> Settled:
        """Post a charge in full whose process has ended.

        Raises:
            ReservationConflict: If its process still runs, or it has ended.
        """
        body = {**self.conditions.provenance, "reason": reason}
        return self._end(End("forfeit", reservation, body=body))

    def _end(self, end: End, command: str | None = None) -> Settled:
        """End a charge; its datasets are loaded before the lock."""
        self._check_writable()
        charge = self._charges.get(end.charge) or self._read_charge(end.charge)
        is_forfeit = end.kind == "forfeit"

        def decide(rows: Rows, author: Author) -> Decision:
            if is_forfeit and rows.charge is not None:
                rows.claimant_is_alive = self.owners.alive(rows.charge.owner)
            return decide_end(rows, end, author)

        scope = find_charge_scope(charge, command=command, is_witnessed=is_forfeit)
        decision, rows = self._transact(scope, decide)
        self._charges.pop(end.charge, None)
        self.watch.record_end(decision, rows)
        settled: Settled = answer_or_raise(decision.answer)
        return settled

    def would_answer(self, request: Request) -> Answer | DpflowError:
        """Decide a request without writing the decision."""
        author = self.author()
        try:
            if (why := self.database.unwritable) is not None:
                return self._replay_only(request, why)
            with self.reading() as transaction:
                scope = find_scope(request)
                rows = load_rows(transaction, scope, self.terms, lock=False)
                decision = self._decide_reserve(rows, request, author)
                if isinstance(decision, Refused):
                    decision = refuse_step(transaction, rows, decision)
        except LedgerError:
            raise
        except DpflowError as error:
            return error
        answer: Answer | DpflowError = decision.answer
        return answer

    def refuse_run(self, request: Request, gate: Gate, amount: Tally) -> None:
        """Refuse a flow run that cannot end, once the journal has the refusal.

        Args:
            request: The step.
            gate: The gate that does not admit the rest of a whole run.
            amount: Amount of the rest of a whole run.

        Raises:
            BudgetExhausted: Always.
        """
        scope = Scope(
            datasets=[gate.dataset],
            accounts=lambda _: [],
            runs=request.runs,
            command=request.reservation,
        )
        decide = partial(
            decide_refusal_of_run, request=request, gate=gate, amount=amount
        )
        self._order(scope, decide)

    def complete_run(self, run: str) -> None:
        """Note that the function of a flow run returned, if the run was charged."""
        self._check_writable()
        with self.writing() as transaction:
            transaction.begin(lock=False)
            transaction.send([("complete_run", {"id": run})])

    # Operators

    def propose(self, policy: Policy) -> Proposal:
        """Say what applying a policy would do; nothing is written."""
        scope = Scope(datasets=[policy.dataset], policies=[policy])
        with self.reading() as transaction:
            rows = load_rows(transaction, scope, self.terms, lock=False)
            rows.forgotten = self.watch.forgotten(rows, [policy.dataset])
            return propose_application(rows, policy)

    def apply(
        self,
        policy: Policy,
        *,
        reason: str = "",
        new_term: bool = False,
        raise_lifetime: bool = False,
    ) -> Proposal:
        """Make a policy the ledger's own copy, which governs from then on.

        Args:
            policy: The file.
            reason: Why; a new term needs one.
            new_term: Open a term with tallies of its own.
            raise_lifetime: Raise the lifetime; its promise ends then.

        Raises:
            PolicyChanged: If only a new term can hold the policy, without `new_term`.
            PolicyNotApplied: If the lifetime or a freeze forbids it.
            ConfigurationError: If another dataset has its source.
        """
        name, how = (
            policy.dataset,
            Application(policy, reason, new_term, raise_lifetime),
        )

        def decide(rows: Rows, author: Author) -> Decision:
            rows.forgotten = self.watch.forgotten(rows, [name])
            return decide_application(rows, how, author)

        scope = Scope(datasets=[name], policies=[policy])
        answer: Proposal = self._order(scope, decide)
        return answer

    def freeze(self, dataset: str, *, reason: str, unfreeze: bool = False) -> bool:
        """Refuse everything on a dataset, or end that; running steps may end.

        Returns:
            Whether that is new.

        Raises:
            PolicyNotApplied: If no policy of the dataset was applied yet.
        """
        decide = partial(
            decide_freeze, dataset=dataset, reason=reason, unfreeze=unfreeze
        )
        answer: bool = self._order(Scope(datasets=[dataset], is_made=False), decide)
        return answer

    def withdraw(self, key: str, *, digest: str | None, reason: str) -> bool:
        """Delete the value of a release; its digest and its charge stay.

        Args:
            key: Key of the release.
            digest: Digest of the value; another one stays.
            reason: Why, for the journal.

        Returns:
            Whether there was such a value.
        """
        self._check_writable()
        with self.reading() as transaction:
            transaction.begin(lock=False)
            _, release = read_claim(transaction.ask("read_release", key=key))
        if release is None:
            return False
        scope = Scope(
            datasets=[release.dataset], accounts=lambda _: [], release_key=key
        )
        decide = partial(decide_withdrawal, digest=digest, reason=reason)
        answer: bool = self._order(scope, decide)
        return answer

    def amend(
        self,
        charge: str,
        cost: Cost,
        *,
        reason: str,
        dataset: str | None = None,
        evidence: str | None = None,
    ) -> tuple[Posted, ...]:
        """Charge what a step cost more than was reserved for it; it may have ended.

        Raises:
            ReservationConflict: If that is no more than was charged: nothing falls.
            UnsupportedCost: If the theorem of an account has no price for the cost.
        """
        amendment = ChargeByHand(cost, reason, evidence, dataset)
        before = self._read_charge(charge)
        scope = find_charge_scope(before, evidence=evidence, is_witnessed=True)
        decide = partial(decide_amendment, amendment=amendment)
        answer: tuple[Posted, ...] = self._order(scope, decide)
        return answer

    def charge_prior(
        self,
        policy: Policy,
        cost: Cost,
        *,
        reason: str,
        evidence: str | None = None,
        flow: str | None = None,
        partitions: Sequence[str] = (),
        populations: Sequence[Policy] = (),
    ) -> tuple[Posted, ...]:
        """Charge what was spent elsewhere; irreversible.

        Raises:
            ConfigurationError: If this evidence was charged before, or no part of a
                divided dataset is named.
        """
        request = Request(
            reservation="prior",
            owner="operator",
            policies=(policy,),
            populations=tuple(populations),
            cost=cost,
            step="spent before dpflow",
            flow=flow,
            partitions=tuple(partitions),
        )
        prior = ChargeByHand(cost, reason, evidence, request=request)
        scope = find_scope(request, charge=None, evidence=evidence, command=None)
        decide = partial(decide_prior, prior=prior)
        answer: tuple[Posted, ...] = self._order(scope, decide)
        return answer

    def find_payer(self, charge: str) -> Payer:
        """Return a charge as the payer of the people of its dataset.

        Raises:
            ReservationConflict: If the ledger has no such charge.
        """
        row = self._read_charge(charge)
        (name,) = (name for name in row.amounts if split(name)[2] == "dataset")
        scope = find_charge_scope(row, people=name)
        with self.reading() as transaction:
            rows = load_rows(transaction, scope, self.terms, lock=False)
            return find_payer(rows, name)

    def pay(self, account: str, charge: str, *, before: str | None) -> None:
        """Note that the people of an account were charged for a step.

        Args:
            account: Account of the dataset.
            charge: Charge of the step.
            before: Charge of the newest step so far; None before the first one.

        Raises:
            ReservationConflict: If another copy of the store was used since.
        """
        command = digest(canonical(["pay", account, charge]))[:32]
        row = self._read_charge(charge)
        scope = find_charge_scope(
            row, people=account, command=command, is_witnessed=True
        )
        self._order(scope, partial(decide_payment, account=account, before=before))

    def _replay_only(self, request: Request, why: LedgerUnavailable) -> Answer:
        """Answer with a stored release where nothing can be charged, or an error."""
        scope = find_scope(request)
        watched = self.watch.read(scope, self.terms)
        with self.reading() as transaction:
            rows = load_rows(transaction, scope, self.terms, lock=False)
            self.watch.check(transaction, rows, watched)
            self._find_claimant(rows, request)
        answer = find_release(rows, request)
        if answer is None:
            raise why
        return answer

    def _check_answer(self, answer: Answer) -> Answer:
        """Return an answer, whose value is the one that was settled."""
        if isinstance(answer, Replayed):
            name = answer.reservation
            self.digests.check_value(answer.value, name, answer.digest, name)
        return answer
