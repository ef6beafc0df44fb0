"""Rows of the files in `answers/`: what a ledger answers to acts in turn.

A row names its acts and the files of its policies: by default epsilon 1 under basic
composition, with the fields of the file that it is `like`. An act begins with its verb:

- `charge`, `reserve`: a step at a cost (an epsilon, or a class with its options). `as`
  names the charge for `settle`, `void`, `forfeit` and `amend`.
- `prior`, `freeze`, `unfreeze`, `apply`, `propose`, `repair`: what a person does.
- `promise`, `advice`: the words of a file's guarantee, of its terms, and about it.
- `journal`, `term`, `sums`, `spent`, `kinds`, `alerts`, `halts`, `accounts`, `view`:
  what the ledger then holds.

An act reads the first file, or those that it names. `error` is the type of its error,
`has` attributes of its answer, `words` and `without` parts of its text. Only a refusal
leaves a trace. Each ledger is verified at the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

import dpflow
import dpflow.costs
from dpflow.accounting.costs.base import Cost
from dpflow.exceptions import BudgetRefused, DpflowError
from dpflow.forecast.advice import advice
from dpflow.ledger import views
from dpflow.ledger.ledger import Ledger
from dpflow.ledger.provenance import system_user
from dpflow.ledger.requests import Granted
from dpflow.ledger.views.spending import spending
from dpflow.policy import Policy, parse_policy
from dpflow.show.guarantees import term_guarantee, terms_in_words
from tests.ledger.support import (
    UNIT,
    audit,
    body,
    everything,
    kinds,
    policy_text,
    repair,
    request,
    sums,
    terms_of,
)

pytestmark = pytest.mark.quick

FOLDER = Path(__file__).with_name("answers")
#: Files without a test of their own.
OTHERS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
OTHERS.remove("reserved_shares")
OTHERS.remove("sources")
#: Parts of acts that are fields of a request, and options of `apply`.
REQUESTED = ("flow", "flow_run", "step", "owner", "partitions")
WISHED = ("reason", "new_term", "raise_lifetime")
#: All parts of acts after the verb; a misspelt part would check nothing.
PARTS = {
    *("as", "file", "times", "cost", "dataset", "evidence", "reported", "outcome"),
    *("error", "has", "words", "without", "answer", *REQUESTED, *WISHED),
}


def rows(*names: str) -> list[Any]:
    """Return the rows of some files; no scalar becomes a number, amounts are exact."""
    result = []
    for name in names:
        text = (FOLDER / f"{name}.yaml").read_text("utf-8")
        table = yaml.load(text, yaml.BaseLoader)
        result += [pytest.param(row, id=title) for title, row in table.items()]
    return result


def flow_text(value: Any) -> str:
    """Write a value in YAML's flow style, with its scalars as they stand."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {flow_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(flow_text, value))}]"
    return str(value)


def read_files(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Policy]:
    """Read the policies of a row."""
    fields: dict[str, dict[str, Any]] = {}
    policies = {}
    for name, row in rows.items():
        fields[name] = {**(fields[row["like"]] if "like" in row else {}), **row}
        texts = {k: flow_text(v) for k, v in fields[name].items() if k != "like"}
        text = policy_text(**texts)
        policies[name] = parse_policy(text.replace("dataset: people", "population: p"))
    return policies


def read_cost(value: Any) -> Cost:
    """Return a cost: an epsilon, or a class with its options."""
    if isinstance(value, str):
        return dpflow.PureDP(epsilon=value)
    ((name, options),) = value.items()
    if "stops" in options:
        stops = [*map(int, options["stops"])]
        return dpflow.EarlyStopping(read_cost(options["step"]), stops=stops)
    if name == "OutputDP":
        return dpflow.OutputDP(options)
    module = dpflow if hasattr(dpflow, name) else dpflow.costs
    cost: Cost = getattr(module, name)(**options)
    return cost


def plain(value: Any) -> Any:
    """Return a value as a row has it: mappings and lists of texts."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [*map(plain, value)]
    return str(value)


class Play:
    """Ledger with the files of a row, and the charges that the row names."""

    def __init__(self, ledger: Ledger, files: Mapping[str, Policy]) -> None:
        self.ledger = ledger
        self.files = files
        self.first = next(iter(files))
        self.charges: dict[str, str] = {}

    def act(self, act: Mapping[str, Any]) -> Any:
        """Do an act and return its answer."""
        verb = next(iter(act))
        assert act.keys() - {verb} <= PARTS, act
        for _ in range(int(act.get("times", 1))):
            answer = getattr(self, verb)(act[verb], act)
        return answer

    def fail(self, act: Mapping[str, Any]) -> DpflowError:
        """Do an act and return its error, which leaves no trace but a refusal's."""
        before = everything(self.ledger)
        with pytest.raises(DpflowError) as caught:
            self.act(act)
        assert caught.type.__name__ == act["error"], act
        if not isinstance(caught.value, BudgetRefused):
            assert everything(self.ledger) == before, act
        return caught.value

    def reserve(self, cost: Any, act: Mapping[str, Any]) -> Granted:
        """Reserve a step on the datasets and the populations of its files."""
        names = act.get("file", self.first)
        names = [names] if isinstance(names, str) else names
        policies = [self.files[name] for name in names]
        people = tuple(p for p in policies if p.dataset.startswith("population/"))
        fields = {name: act[name] for name in REQUESTED if name in act}
        if "owner" in fields:
            fields["owner"] = "0" * 32
        if "partitions" in fields:
            fields["partitions"] = tuple(fields["partitions"])
        answer = self.ledger.reserve(
            request(
                self.ledger,
                read_cost(cost),
                policies=[policy for policy in policies if policy not in people],
                populations=people,
                **fields,
            )
        )
        assert isinstance(answer, Granted)
        self.charges[act.get("as", "last")] = answer.reservation
        return answer

    def charge(self, cost: Any, act: Mapping[str, Any]) -> Any:
        """Reserve a step and settle it."""
        self.reserve(cost, act)
        return self.settle(act.get("as", "last"), act)

    def settle(self, name: str, act: Mapping[str, Any]) -> Any:
        """Settle a charge."""
        reported = act.get("reported")
        reported = int(reported) if str(reported).isdigit() else reported
        outcome = act.get("outcome", "completed")
        charge = self.charges[name]
        return self.ledger.settle(charge, outcome=outcome, reported=reported)

    def void(self, name: str, _: Any) -> None:
        """Void a charge."""
        self.ledger.void(self.charges[name], reason="not started")

    def forfeit(self, name: str, _: Any) -> Any:
        """Forfeit a charge."""
        return self.ledger.forfeit(self.charges[name], reason="its host is gone")

    def amend(self, name: str, act: Mapping[str, Any]) -> Any:
        """Correct the cost of a charge."""
        why = {k: act[k] for k in ("dataset", "evidence") if k in act}
        charge, cost = self.charges[name], read_cost(act["cost"])
        posted = self.ledger.amend(charge, cost, reason="as drawn", **why)
        return {p.account: {**p.amount, "overdrawn": p.overdrawn} for p in posted}

    def prior(self, cost: Any, act: Mapping[str, Any]) -> Any:
        """Charge what was spent before."""
        policy = self.files[act.get("file", self.first)]
        why = {k: act[k] for k in ("flow", "partitions", "evidence") if k in act}
        posted = self.ledger.charge_prior(policy, read_cost(cost), reason="2025", **why)
        return {p.account: {**p.amount, "overdrawn": p.overdrawn} for p in posted}

    def freeze(self, reason: str, act: Mapping[str, Any]) -> bool:
        """Freeze a dataset."""
        return self.ledger.freeze(act.get("dataset", "a"), reason=reason)

    def unfreeze(self, reason: str, act: Mapping[str, Any]) -> bool:
        """Unfreeze a dataset."""
        dataset = act.get("dataset", "a")
        return self.ledger.freeze(dataset, reason=reason, unfreeze=True)

    def apply(self, name: str, act: Mapping[str, Any]) -> Any:
        """Apply a file."""
        wished = {k: act[k] for k in WISHED if k in act}
        return self.ledger.apply(self.files[name], **wished)

    def propose(self, name: str, _: Any) -> Any:
        """Propose a file."""
        return self.ledger.propose(self.files[name])

    def repair(self, used: Mapping[str, str], _: Any) -> None:
        """Raise accounts to what a witness holds."""
        repair(self.ledger, {k: (int(v) * UNIT, 0) for k, v in used.items()})

    def promise(self, name: str, _: Any) -> str:
        """Return the guarantee of a file and what its terms add up to."""
        policy = self.files[name]
        terms = views.terms(self.ledger, policy.dataset)
        guarantee = term_guarantee(policy.to_declared(), terms)
        return f"{guarantee} {terms_in_words(terms)}"

    def advice(self, name: str, _: Any) -> str:
        """Return what the command `policy check` advises about a file."""
        policy = self.files[name]
        texts = advice(policy, terms=views.terms(self.ledger, policy.dataset))
        return " ".join(f"{item.code}: {item.text}" for item in texts)

    def journal(self, kind: str, _: Any) -> Any:
        """Return the newest entry of a kind."""
        return body(self.ledger, kind)

    def term(self, number: str, _: Any) -> Any:
        """Return what is pinned of a term."""
        return terms_of(self.ledger)[int(number) - 1]

    def sums(self, accounts: Mapping[str, Any], _: Any) -> None:
        """Compare settled and held amounts."""
        for account, amounts in accounts.items():
            assert sums(self.ledger, account) == tuple(map(Fraction, amounts))

    def kinds(self, accounts: Mapping[str, list[str]], _: Any) -> None:
        """Compare the newest kinds of entries about accounts."""
        for account, expected in accounts.items():
            assert kinds(self.ledger, account)[-len(expected) :] == expected

    def alerts(self, datasets: Mapping[str, list[str]], _: Any) -> None:
        """Compare accounts and thresholds of alerts, newest first."""
        for dataset, expected in datasets.items():
            alerts = views.alerts(self.ledger, dataset)
            assert [f"{a.account} {a.threshold}" for a in alerts] == expected

    def halts(self, expected: Mapping[str, str], _: Any) -> None:
        """Compare the accounts that halted flows."""
        halts = views.halts(self.ledger, "a")
        assert {flow: refusal.account for flow, refusal in halts.items()} == expected

    def spent(self, expected: Mapping[str, str], _: Any) -> None:
        """Compare what the flows of the first term spent."""
        rows, _ = spending(self.ledger, "a", ("flow",), term=1)
        assert {row.group[0]: row.amount["epsilon"] for row in rows} == expected

    def view(self, account: str, _: Any) -> Any:
        """Return the view of an account."""
        shown = {view.id: view for view in views.accounts(self.ledger)}
        return shown[account]

    def accounts(self, expected: list[str], _: Any) -> None:
        """Compare the accounts that a person sees."""
        assert [view.id for view in views.accounts(self.ledger)] == expected


@pytest.mark.parametrize("row", rows(*OTHERS))
def test_a_ledger_answers_as_its_rows_say(ledger, row):
    """With the type of each error, its words, and the fields of each answer."""
    play_row(ledger, row)


@pytest.mark.promise("reserved-share")
@pytest.mark.parametrize("row", rows("reserved_shares"))
def test_no_other_flow_uses_a_reserved_share(ledger, row):
    """A share alone is a limit (the first row, a negative control)."""
    play_row(ledger, row)


@pytest.mark.promise("renamed-dataset")
@pytest.mark.parametrize("row", rows("sources"))
def test_another_name_for_a_source_has_no_budget_of_its_own(ledger, row):
    """A renamed dataset would start anew; a step, `apply` and a first source say no."""
    play_row(ledger, row)


def play_row(ledger: Ledger, row: Mapping[str, Any]) -> None:
    """Do the acts of a row in turn and check their answers."""
    play = Play(ledger, read_files(row["files"]))
    for act in row["acts"]:
        check_answer(play.fail(act) if "error" in act else play.act(act), act)
    audit(ledger)


def check_answer(answer: Any, act: Mapping[str, Any]) -> None:
    """Compare an answer or an error with the row of its act."""
    details = getattr(answer, "details", {})
    text = f"{answer} {details.get('fits')} {details.get('left')}"
    for words in act.get("words", ()):
        pattern = words.replace("{user}", system_user())
        assert re.search(pattern, text, re.DOTALL), (act, text)
    for words in act.get("without", ()):
        assert words not in text, act
    assert plain(answer) == act.get("answer", plain(answer))
    for name, value in act.get("has", {}).items():
        fields = answer if isinstance(answer, dict) else {name: getattr(answer, name)}
        assert plain(fields[name]) == value, act
