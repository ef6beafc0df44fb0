"""The way of one charge: every function and file of dpflow that it enters.

A pair of reserve and settle, with a release key, a witness and three gates (dataset,
share of a flow, odometer), once all that a process loads and remembers is there.

    python -m benchmarks.path
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import dpflow
from dpflow import PureDP
from dpflow.ledger import Ledger, create_ledger
from dpflow.ledger.requests import Request
from dpflow.policy import parse_policy

_HOME = str(Path(dpflow.__file__).parent)
#: The last one is traced.
_PAIRS = 4
_POLICY = """\
dataset: a
unit: customer
relation: add-or-remove
budget: {epsilon: 100, delta: 1e-6}
filter: basic
flows: {weekly: {epsilon: 50}}
odometer: {theorem: rdp, delta: 1e-6, order: 8}
"""


class Trace:
    """Collects the functions that run, with how often."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call of a function of dpflow."""
        code = frame.f_code
        # A comprehension is a part of the function around it.
        if event == "call" and code.co_filename.startswith(_HOME):
            name = code.co_name
            if name == "<lambda>" or not name.startswith("<"):
                self.calls[code] += 1

    def files(self) -> Counter[str]:
        """Return how many functions of each file ran."""
        return Counter(code.co_filename[len(_HOME) + 1 :] for code in self.calls)


def pair(ledger: Ledger, request: Request) -> None:
    """Reserve and settle."""
    ledger.reserve(request)
    ledger.settle(request.reservation, value='"output"')


def traced(folder: Path) -> Trace:
    """Run a few pairs, and trace the last one."""
    url, policy = f"sqlite:///{folder / 'ledger.db'}", parse_policy(_POLICY)
    ledger, cost = create_ledger(url, witness=str(folder / "w")), PureDP(epsilon="0.01")
    trace = Trace()
    for number in range(_PAIRS):
        request = Request(
            reservation=uuid.uuid4().hex,
            owner=ledger.owners.mine(),
            policies=(policy,),
            cost=cost,
            step="count",
            flow="weekly",
            flow_run="run",
            release_key=ledger.digests.of(number),
            key_text=str(number),
        )
        if number == _PAIRS - 1:
            sys.setprofile(trace)
        pair(ledger, request)
        sys.setprofile(None)
    ledger.close()
    return trace


def main() -> None:
    """Print what was entered, file by file."""
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(Path(folder))
    files = trace.files()
    for name, count in sorted(files.items()):
        print(f"{count:4}  {name}")
    calls = sum(trace.calls.values())
    print(f"{len(trace.calls)} functions in {len(files)} files, {calls} calls")


if __name__ == "__main__":
    main()
