"""Answers derived from releases: sums, differences, ratios and consistent fits.

Everything here reads stored releases and is post-processing: it costs no budget.
`docs/derivations/answers.md` has the proofs.
"""
