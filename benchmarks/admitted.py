"""How many adaptive steps each filter admits, beside other libraries.

    python benchmarks/peers/interpreters.py     # once: the peers' environments
    python benchmarks/admitted.py > docs/data/admitted.json

A peer that this environment cannot import runs in an interpreter of its own:
`--peer-python NAME=PATH`, the variable DPFLOW_PEER_NAME, or .peers/NAME/bin/python
(`--peers FOLDER`). A peer that is nowhere is skipped with a notice.

Counts are the steps before the first refusal, found by doubling and bisection, and
repeated step by step where they are small. Exit code 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from admitted_report import Further, Row, report
from counting import admitted, cost_of, tuned_order
from interpreters import FOLDER, PEERS, Peer, Question, ask, interpreter
from workloads import BUDGETS, FURTHER, WORKLOADS, Workload, largest

from dpflow.accounting import FILTERS, Filter, make_filter
from dpflow.exceptions import ConfigurationError, InvalidCost, UnsupportedCost

Make = Callable[[Workload, Fraction, Fraction], Filter]


@dataclass(frozen=True)
class Own:
    """A row of dpflow.

    Args:
        name: How the row is called.
        theorem: The filter's name.
        make: From workload, epsilon and delta to the filter.
    """

    name: str
    theorem: str
    make: Make


def _plain(theorem: str, **options: object) -> Make:
    return lambda _, epsilon, delta: make_filter(
        theorem, epsilon=epsilon, delta=delta, **options
    )


def _tuned(workload: Workload, epsilon: Fraction, delta: Fraction) -> Filter:
    order = tuned_order(workload, epsilon, delta)
    return make_filter("rdp", epsilon=epsilon, delta=delta, order=order)


def _own_rows() -> list[Own]:
    rows = [
        Own("basic", "basic", _plain("basic")),
        Own("output-dp", "output-dp", _plain("output-dp")),
        Own("rogers", "rogers", _plain("rogers")),
        Own("whitehouse", "whitehouse", _plain("whitehouse")),
        Own("whitehouse, tanh", "whitehouse", _plain("whitehouse", drift="tanh")),
        Own("zcdp", "zcdp", _plain("zcdp")),
        Own("rdp", "rdp", _plain("rdp")),
        Own("rdp, order tuned", "rdp", _tuned),
        Own("gdp", "gdp", _plain("gdp")),
        Own("auto", "auto", _plain("auto")),
    ]
    known = {row.theorem for row in rows} | {"sequence"}
    rows += [Own(name, name, _plain(name)) for name in FILTERS if name not in known]
    return rows


def own_counts(notices: list[str]) -> list[Row]:
    """Count for every filter of dpflow but `sequence`."""
    found = []
    for own in _own_rows():
        if own.theorem not in FILTERS:
            notices.append(f"dpflow {own.theorem}: not registered yet, skipped")
            continue
        row = Row("dpflow", own.name, own=True)
        reasons = set()
        for workload in WORKLOADS:
            for epsilon, delta in BUDGETS:
                try:
                    rule = own.make(workload, Fraction(epsilon), Fraction(delta))
                    row.counts[workload.name, epsilon] = admitted(rule, workload)
                except UnsupportedCost:
                    reasons.add(workload.name)
                except InvalidCost as error:
                    reasons.add(f"{workload.name} ({error.message})")
        if reasons:
            refused = ", ".join(sorted(reasons))
            notices.append(f"dpflow {own.name}: has no price for {refused}")
        if row.counts:
            found.append(row)
    return found


def further_counts() -> list[Further]:
    """Count for `auto` and the best single filter on the further workloads."""
    found = []
    for workload, epsilon, delta in FURTHER:
        counts: dict[str, int] = {}
        for own in _own_rows():
            try:
                rule = own.make(workload, Fraction(epsilon), Fraction(delta))
                counts[own.name] = admitted(rule, workload)
            except (UnsupportedCost, InvalidCost):
                continue  # it has no price for a step
        union = counts.pop("auto", 0)
        best = max(counts, key=lambda name: counts[name])
        found.append(
            Further(workload.meaning, epsilon, delta, union, counts[best], best)
        )
    return found


def sequence_counts(optimum: list[Row], notices: list[str]) -> list[Row]:
    """Find the longest sequence that the budget takes, near the optimum first."""
    near = {cell: n for r in reversed(optimum) for cell, n in r.counts.items()}
    rows = []
    for name, accountant in (("sequence", "pld"), ("sequence, accountant rdp", "rdp")):
        row = Row("dpflow", name, own=True, valid="sequence")
        for workload in WORKLOADS:
            for epsilon, delta in BUDGETS:
                budget = Fraction(epsilon), Fraction(delta)
                fits = _sequence_fits(workload, *budget, accountant)
                guess = near.get((workload.name, epsilon))
                try:
                    row.counts[workload.name, epsilon] = largest(fits, guess)
                except (UnsupportedCost, ConfigurationError) as error:
                    notices.append(f"dpflow {name}, {workload.name}: {error.message}")
        rows.append(row)
    return rows


def _sequence_fits(
    workload: Workload, epsilon: Fraction, delta: Fraction, accountant: str
) -> Callable[[int], bool]:
    def fits(steps: int) -> bool:
        parts = workload.first(steps)
        try:
            make_filter(
                "sequence",
                epsilon=epsilon,
                delta=delta,
                steps=[{"cost": cost_of(step), "times": n} for step, n in parts],
                accountant=accountant,
            )
        except InvalidCost as error:
            if error.high != epsilon:
                raise  # not a matter of the budget
            return False
        return True

    return fits


def start_peers(
    given: dict[str, str], folder: Path, stack: ExitStack, notices: list[str]
) -> list[tuple[Peer, Question]]:
    """Start all peers that there are, side by side."""
    started = []
    for peer in PEERS:
        python = interpreter(peer, given, folder)
        if python is None:
            notices.append(
                f"{peer.name}: not installed here nor in {folder}, skipped. Run "
                f"python benchmarks/peers/interpreters.py {peer.name}"
            )
            continue
        for script in peer.scripts:
            answers = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115
            started.append((peer, ask(script, python, answers, errors)))
    return started


def peer_rows(questions: list[tuple[Peer, Question]], notices: list[str]) -> list[Row]:
    """Collect the peers' answers."""
    rows: dict[tuple[str, str], Row] = {}
    for _, question in questions:
        answers, failure = question.wait()
        if failure:
            notices.append(failure)
        for answer in answers:
            key = (answer["peer"], answer["rule"])
            row = rows.setdefault(key, Row(*key, version=answer["version"]))
            cell = (answer["workload"], answer["epsilon"])
            if answer["steps"] is not None:
                row.counts[cell] = answer["steps"]
                row.validity[cell] = answer["valid"]
            if answer.get("why") and answer["steps"] is not None:
                notices.append(f"{key[0]} {key[1]}, {cell}: {answer['why']}")
    return list(rows.values())


def main() -> int:
    """Run everything and print the tables as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", action="append", default=[], metavar="N=PATH")
    parser.add_argument("--peers", type=Path, default=FOLDER, metavar="FOLDER")
    options = parser.parse_args()
    given = dict(pair.split("=", 1) for pair in options.peer_python)
    unknown = set(given) - {peer.name for peer in PEERS}
    if unknown:
        parser.error(f"no such peers: {', '.join(sorted(unknown))}")
    notices: list[str] = []
    with ExitStack() as stack:
        questions = start_peers(given, options.peers, stack, notices)
        own = own_counts(notices)
        further = further_counts()
        peers = peer_rows(questions, notices)
    optimum = [row for row in peers if row.peer == "fixed sequence"]
    peers = [row for row in peers if row.peer != "fixed sequence"]
    sequences = sequence_counts(optimum, notices)
    page, missed = report(
        own=own,
        sequences=sequences,
        peers=peers,
        optimum=optimum,
        further=further,
        notices=notices,
    )
    print(json.dumps(page, indent=1, ensure_ascii=False))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
