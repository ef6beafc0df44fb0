"""The guard around a DP step, for plain Python: charge, run, settle.

`step` is what an author declares, `request` its request to the ledger, `charge` one
execution and `iterations` the sub-steps of it; `plain` has `guarded` and `spend`. It
opens the ledger and the policies (`project`) and knows no Prefect.
"""
