"""What a decision costs in each library after 10, 1,000 and 100,000 charges.

    python benchmarks/peers/interpreters.py     # once: the peers' environments
    python benchmarks/decision_peers.py [--save docs/decision-cost.md]

All in one run, one library after another. A decision is what a step waits for: its
price given all charges so far, and whether it fits. Peers that keep an object are asked
by it, the others for all steps anew, as their users must. Processor time of one thread,
the best of five; a library that takes more than a minute to get to a count is left out
there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from answers import NotOfferedError, Rule, always
from counting import cost_of
from decisions import CHARGES, DELTA, EPSILON, SMALL, answer_decisions
from interpreters import FOLDER, HERE, PEERS, Peer, interpreter
from workloads import Step, Workload

from dpflow import __version__
from dpflow.accounting import FILTERS, Filter, make_filter
from dpflow.exceptions import UnsupportedCost

#: The optimum is no library's decision.
_SCRIPTS = {"run_optimum.py"}
_OWN = ("basic", "zcdp", "gdp", "rdp", "residue", "auto")
_HEAD = f"""# What a decision costs, beside other libraries

Written by `benchmarks/decision_peers.py` on {{date}}, one library after another in one
run. A decision is what a step waits for: its price given all charges so far, and
whether it fits. Libraries that keep an object are asked by it, the others for all steps
anew, as their users must. Processor time of one thread, the best of five; a library
that takes more than a minute to get to a count is left out there (-).
dpflow's rows are its theorems alone, as an accountant would be used; what its durable
ledger adds to them is in [how fast it is](benchmarks.md).

Budget ({EPSILON:g}, {DELTA:g}). Gaussian: {SMALL[0].meaning}; pure: {SMALL[1].meaning}.
Microseconds; "ratio" is the last count beside the first.
"""


def own_rule(theorem: str) -> Rule:
    """Return a filter of dpflow as the peers' rules are asked."""

    def admit(
        workload: Workload, epsilon: float, delta: float, _: int
    ) -> Callable[[Step], bool]:
        cost = cost_of(workload.cycle[0])
        rule: Filter = make_filter(
            theorem, epsilon=Fraction(str(epsilon)), delta=Fraction(str(delta))
        )
        tally = rule.zero()
        try:
            rule.price(cost, tally)
        except UnsupportedCost as error:
            raise NotOfferedError(error.message) from None

        def decide(_: Step) -> bool:
            nonlocal tally
            after = tally + rule.price(cost, tally)
            granted = rule.admits(after)
            tally = after if granted else tally
            return granted

        return decide

    return Rule(theorem, always("adaptive"), lambda *_: lambda _: True, admit)


def own_lines() -> Iterator[dict[str, Any]]:
    """Yield the answers of dpflow, from a process of their own like the peers'."""
    command = [sys.executable, "-W", "ignore", __file__, "--own"]
    yield from _lines(command)


def peer_lines(peer: Peer, python: str) -> Iterator[dict[str, Any]]:
    """Yield the answers of a peer."""
    for script in peer.scripts:
        if script not in _SCRIPTS:
            command = [python, "-W", "ignore", str(HERE / script), "--decisions"]
            yield from _lines(command)


def _lines(command: list[str]) -> Iterator[dict[str, Any]]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        print(f"{command[3]} failed: {done.stderr[-300:]}", file=sys.stderr)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def table(lines: list[dict[str, Any]]) -> str:
    """Return all answers as a table in Markdown."""
    counts = " | ".join(f"{count:,}" for count in CHARGES)
    head = f"| library | rule | step | {counts} | ratio |\n| --- | --- | --- |"
    rows = [head + " ---: |" * (len(CHARGES) + 1)]
    for line in lines:
        times = {int(k): v for k, v in line["microseconds"].items()}
        cells = [_shown(times.get(count)) for count in CHARGES]
        first, last = times.get(CHARGES[0]), times.get(CHARGES[-1])
        ratio = "-" if first is None or last is None else f"{last / first:.2g}"
        kept = "" if line["keeps"] else ", asked anew"
        name = f"{line['peer']} {line['version']}"
        shown = " | ".join([name, line["rule"] + kept, line["workload"], *cells, ratio])
        rows.append(f"| {shown} |")
    return "\n".join(rows)


def _shown(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds:,.0f}" if microseconds >= 10 else f"{microseconds:.1f}"  # noqa: PLR2004


def own() -> None:
    """Print the answers of dpflow."""
    for theorem in _OWN:
        if theorem in FILTERS:
            answer_decisions("dpflow", __version__, [own_rule(theorem)])


def main() -> int:
    """Ask everybody and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--save", type=Path, metavar="FILE")
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.own:
        own()
        return 0
    lines = list(own_lines())
    for peer in PEERS:
        python = interpreter(peer, {}, options.peers)
        if python is None:
            print(f"{peer.name}: not installed, skipped", file=sys.stderr)
            continue
        lines += peer_lines(peer, python)
    text = _HEAD.format(date=datetime.now(UTC).date()) + "\n" + table(lines) + "\n"
    print(text)
    if options.save:
        options.save.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
