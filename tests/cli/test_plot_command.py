"""`dpflow plot` writes pictures, and says in words what is on them."""

from __future__ import annotations

from tests.cli.support import Shop, run_fine


def test_a_burn_down_is_written_and_told(shop: Shop) -> None:
    """As a PNG or an SVG, by the name; folders are made."""
    shop.charge(key="revenue/W1")
    text = run_fine("plot", "burndown", "cdnow", "--out", "pictures/b.png")
    assert text.startswith("Wrote pictures/b.png.\n")
    assert "Burn-down of cdnow (epsilon 3 at delta 1e-6, gdp filter)" in text
    picture = (shop.root / "pictures" / "b.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    run_fine("plot", "burndown", "cdnow", "--out", "b.svg", "--over", "dates")
    assert "<svg" in (shop.root / "b.svg").read_text("utf-8")
