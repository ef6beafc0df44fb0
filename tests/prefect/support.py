"""What several test files here ask of the ledger."""

from __future__ import annotations

from dpflow.ledger.views import accounts, history


def kinds(project, dataset="shop"):
    """Return the kinds of the dataset's journal entries, oldest first."""
    entries = history(project.ledger, dataset, limit=1000)
    return [entry.kind for entry in sorted(entries, key=lambda entry: entry.seq)]


def draws(project, dataset="shop"):
    """Return how many charges on the dataset were held by a run reservation before."""
    entries = history(project.ledger, dataset, limit=1000)
    return sum("preflight" in e.body for e in entries if e.kind == "reserve")


def spent(project, dataset="shop"):
    """Return what the dataset's account has settled, by component."""
    (view,) = [v for v in accounts(project.ledger, dataset) if v.kind == "dataset"]
    return dict(view.spent)


def charges(project, dataset="shop"):
    """Return how many charges were reserved on the dataset."""
    return kinds(project, dataset).count("reserve")
