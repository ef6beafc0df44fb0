"""Mutants of what decides: gates, admissions, ends, preflights and terms."""

from __future__ import annotations

from tests.hunts.broken.mutant import OFF, Mutant

GATES = [
    Mutant(
        "held charges are forgotten",
        "total = self.used + asked",
        "total = self.settled + asked",
    ),
    Mutant(
        "an overdrawn or frozen account admits",
        'if self.state != "open":\n            return False',
        'if self.state != "open":\n            pass',
        ("law", "office", "decisions"),
    ),
    Mutant(
        "an odometer halts at its limit, not above it",
        ".read(total) <= _highest_reading(self.halt)",
        ".read(total) < _highest_reading(self.halt)",
        ("gates", "law"),
    ),
    Mutant(
        "a step is priced for one unit, however many it touches",
        "return _price(rule, halt, group_cost(cost, size), rule.zero())",
        "return _price(rule, halt, group_cost(cost, 1), rule.zero())",
        ("gates", "law"),
    ),
    Mutant(
        "a whole dataset divided by time counts one part",
        'size = len(step.partitions) if "whole" in term.facts["pinned"] else 0',
        'size = 1 if "whole" in term.facts["pinned"] else 0',
        ("gates", "law"),
    ),
    Mutant(
        "a population counts one part",
        "return len(step.partitions) if divided else 1",
        "return 1",
        ("gates", "law"),
    ),
    Mutant(
        "a partition's flow has no gate",
        'yield _empty(term, f"{base}{part}/{kind}/{step.flow}")',
        'yield _empty(term, f"{base}/{kind}/{step.flow}") if not part else None',
        ("gates", "law"),
    ),
    Mutant(
        "a flow's share is no gate",
        "if step.flow is not None and not closed:",
        OFF,
        ("law", "gates"),
    ),
    Mutant(
        "any flow may use the dataset",
        'return flow in pinned["flows"] or pinned["other_flows"] == "allow"',
        "return True",
        ("decisions", "gates", "office"),
    ),
    Mutant(
        "several steps on one account are priced as one",
        "(gate, before + gate.price(cost, used + before))",
        "(gate, gate.price(cost, used + before))",
        ("law", "decisions"),
    ),
    Mutant(
        "a freeze is not seen",
        "if state.book(self.dataset).frozen is not None:\n            told",
        "if False:\n            told",
        ("law", "office"),
    ),
    Mutant(
        "an account that was overdrawn admits",
        'told = "overdrawn" if row.overdrawn else told',
        "pass",
        ("law", "office", "decisions"),
    ),
    Mutant(
        "what overdraws is not noticed",
        "return grew and isinstance(self.rule, Filter) and not self.rule.admits(total)",
        "return False",
        ("law", "office"),
    ),
]
ADMIT = [
    Mutant(
        "an id may be sent with any request",
        "if not (mine and request.made(made)):",
        "if not mine:",
    ),
    Mutant(
        "an owner may send another's id",
        '== (request.owner, "open")',
        '== (charge.owner, "open")',
    ),
    Mutant(
        "an id that ended is granted again",
        'mine = (charge.owner, charge.state) == (request.owner, "open")',
        "mine = charge.owner == request.owner",
    ),
    Mutant(
        "a release is made twice at once",
        'if release.state == "claimed" and charge.owner in state.alive:',
        OFF,
    ),
    Mutant(
        "a release that is made anew has the value of the last one",
        "values = {name: values[name] for name in values if name != row.key}",
        "pass",
        ("decisions",),
    ),
    Mutant(
        "a frozen dataset replays",
        "if any(state.book(name).frozen is not None for name in request.locked):",
        OFF,
        ("office", "decisions"),
    ),
    Mutant(
        "an odometer's halt is forgotten",
        "if gate.id in halted or not gate.admits(added)",
        "if not gate.admits(added)",
        ("law", "decisions", "gates"),
    ),
    Mutant(
        "only the first gate is asked",
        "in zip(pairs, case.added, strict=True)",
        "in zip(pairs[:1], case.added, strict=False)",
    ),
    Mutant(
        "a draw is counted as new",
        "if not self.drawn:\n            return self.pairs",
        "if True:\n            return self.pairs",
    ),
    Mutant(
        "a step draws what it does not ask for",
        'shared["preflight"] = {"id": case.cover.preflight, **held}',
        "pass",
    ),
    Mutant(
        "a step of an ended run is admitted",
        "refusing = list(pairs[:1])",
        "pass",
    ),
    Mutant(
        "a flow that the policy closes is admitted",
        "yield whole and whole._replace(closed=closed, holds=holds)",
        "yield whole and whole._replace(holds=holds)",
        ("decisions", "gates", "office"),
    ),
    Mutant(
        "a run's refusal is not noted for the runs around it",
        "runs = [*request.enclosing_runs, request.flow_run, request.covers]",
        "runs = [request.flow_run, request.covers]",
        ("decisions", "law"),
    ),
    Mutant(
        "an odometer that refuses halts nothing",
        '"halts": [gate.id for gate, _ in here if gate.kind == "odometer"],',
        '"halts": [],',
        ("decisions", "law", "gates"),
    ),
    Mutant(
        "a population may be left out",
        "if needed != given:",
        OFF,
        ("gates", "decisions"),
    ),
    Mutant(
        "a cost need not hold for the relation",
        "if relation not in allowed:",
        OFF,
        ("decisions",),
    ),
    Mutant(
        "a release key is not claimed",
        'shared |= {"key": request.release_key}',
        "pass",
    ),
    Mutant(
        "an alert is told again",
        "if threshold <= reached and number_text(threshold) not in known",
        "if threshold <= reached",
        ("gates", "law"),
    ),
    Mutant(
        "what was granted is asked for like what never was",
        "most is not None and amount.fits_within(Tally(most))",
        "most is None",
        ("law", "decisions"),
    ),
]
END = [
    Mutant(
        "anyone may void",
        'if kind == "void" and charge.owner != command.owner:',
        OFF,
    ),
    Mutant(
        "the living are forfeited",
        'charge.state == "open" and charge.owner in state.alive:',
        "charge.owner is None:",
    ),
    Mutant(
        "a charge ends twice",
        'elif charge.state != "open":\n        problem',
        "elif False:\n        problem",
    ),
    Mutant(
        "a second settlement is an error",
        'if (kind, ended) == ("settle", "settled"):\n        return True',
        'if (kind, ended) == ("settle", "settled"):\n        pass',
    ),
    Mutant(
        "a void that was sent again is an error",
        "command.again and voided:",
        "False:",
        ("model", "decisions", "crash"),
    ),
    Mutant(
        "a report charges more than was reserved",
        "return posted.amounts if posted.fits_within(whole) else reserved",
        "return posted.amounts",
        ("decisions", "law"),
    ),
    Mutant(
        "several units at once are given back as one",
        "if gate.size != 1:\n        # Reserved",
        "if False:\n        # Reserved",
        ("decisions", "gates", "law"),
    ),
    Mutant(
        "an amended charge is settled for what it reports",
        'if kind == "settle" and not charge.added else None',
        'if kind == "settle" else None',
        ("office", "decisions", "law"),
    ),
    Mutant(
        "a preflight is settled or voided",
        'if kind == "settle" or (kind == "void" and drawn):',
        OFF,
        ("decisions", "model", "law"),
    ),
    Mutant(
        "another price than was charged is given back from",
        "if gate.price(cost, used) != whole:",
        OFF,
        ("decisions", "law"),
    ),
    Mutant(
        "anyone seals a run",
        "if charge.owner != command.owner:\n        msg",
        "if False:\n        msg",
    ),
    Mutant(
        "a repaired preflight is sealed",
        "if is_repaired(state, charge):\n        # Draws",
        "if False:\n        # Draws",
        ("decisions", "witness", "audit"),
    ),
]
PREFLIGHT = [
    Mutant(
        "a late step draws from a sealed run",
        'ended = charge.state != "open" or is_repaired(state, charge)',
        "ended = False",
    ),
    Mutant(
        "a step draws more than is left",
        "gate.id in held and amount.fits_within(Tally(held[gate.id]))",
        "gate.id in held",
        equal="the journal's reader refuses to draw more than is held",
    ),
    Mutant(
        "a run that was refused draws",
        "if place is not None:\n            refused = dict",
        "if False:\n            refused = dict",
    ),
    Mutant(
        "a living run is taken over",
        "if not owned and charge.owner not in state.alive:",
        "if not owned:",
    ),
    Mutant(
        "a run that declared anew keeps what it held",
        'sealed(pen, charge, {"outcome": "declared anew"})\n    return None',
        "return None",
    ),
    Mutant(
        "any rule holds a run in advance",
        'if rule.theorem == "individual":',
        'if rule.theorem == "nothing":',
        ("decisions",),
    ),
]
TERMS = [
    Mutant(
        "a policy may change after its first charge",
        "and not any(_has_run(book, number) for number in range(1, book.terms + 1))",
        "and True",
        ("office", "decisions"),
    ),
    Mutant(
        "an applied policy may be replaced by a file",
        'term.facts["because"] in BY_ITSELF\n        and',
        "True\n        and",
        ("office", "decisions"),
    ),
    Mutant(
        "an edited policy governs",
        "if term is not None and agrees(term, policy):\n        return term",
        "if term is not None:\n        return term",
        ("model", "office", "decisions"),
    ),
    Mutant(
        "a source is spent under two names",
        "if book != policy.dataset and not together:",
        OFF,
        ("office",),
    ),
    Mutant(
        "an amendment replaces what was added before",
        "found[name] = (Tally(found[name]) + Tally(amount)).amounts",
        "found[name] = amount",
        ("law", "office"),
    ),
    Mutant(
        "evidence is charged twice",
        "if used == account:\n            msg",
        "if False:\n            msg",
        ("law", "office"),
    ),
    Mutant(
        "a gate is loosened in place",
        "if not _is_tighter(old, new):",
        OFF,
        ("office", "audit"),
        equal="the changes were judged before; this looks at the rules as well",
    ),
    Mutant(
        "terms add up to more than the lifetime",
        "if not budgets.fit(lifetime):",
        OFF,
        ("office",),
    ),
    Mutant(
        "a lifetime is raised unasked",
        "if before is None or policy.lifetime is None or allowed:",
        "if True:",
        ("office",),
    ),
]
