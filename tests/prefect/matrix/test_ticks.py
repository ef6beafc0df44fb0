"""Two ticks of one week at once: real flow runs, in processes of their own."""

from __future__ import annotations

from types import SimpleNamespace

from tests.prefect.matrix.support import books, marks, settled, wait_until


def two_ticks(laboratory):
    """Start the second while the first is in its body; then let both end."""
    folder = laboratory.project("two-ticks")
    with (
        laboratory.running(folder, "first_tick") as one,
        laboratory.running(folder, "second_tick") as two,
    ):
        wait_until(lambda: marks(folder)["tick"] == 2, "both ticks")
        wait_until(lambda: marks(folder)["weekly"], "the body")
        waiting = books(folder)
        (folder / "go").touch()
        codes = [process.wait(timeout=900) for process in (one, two)]
    return SimpleNamespace(
        waiting=waiting, codes=codes, books=books(folder), marks=marks(folder)
    )


def killed_tick(laboratory):
    """Kill the first in its body while the second waits for it."""
    folder = laboratory.project("killed-tick")
    with laboratory.running(folder, "first_tick") as one:
        wait_until(lambda: marks(folder)["weekly"], "the body")
        with laboratory.running(folder, "second_tick") as two:
            wait_until(lambda: marks(folder)["tick"] == 2, "the second tick")
            one.kill()
            one.wait()
            wait_until(lambda: marks(folder)["weekly"] == 2, "the second body")
            (folder / "go").touch()
            code = two.wait(timeout=900)
    return SimpleNamespace(code=code, books=books(folder), marks=marks(folder))


EXPERIMENTS = [two_ticks, killed_tick]


def test_two_ticks_of_a_week_make_one_charge(found):
    """The second waits for the claim of the first, and replays its release."""
    seen = found(two_ticks)
    assert seen.waiting == settled(1, "0", outcomes=(), open=1)
    assert seen.codes == [0, 0]
    assert seen.books == settled(1, "0.1")
    assert (seen.marks["tick"], seen.marks["weekly"]) == (2, 1)


def test_a_killed_tick_stays_charged_and_the_other_pays_its_own(found):
    """The dead claim frees the key; its charge is forfeited, never returned."""
    seen = found(killed_tick)
    assert seen.code == 0
    assert seen.books == settled(
        2, "0.1", outcomes=("completed",), orphans=1, forfeited="0.1"
    )
    assert seen.marks["weekly"] == 2
