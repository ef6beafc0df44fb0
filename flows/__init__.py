"""Runnable example flows on real data; they use dpflow's public names only."""
