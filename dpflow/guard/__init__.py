"""The guard around a DP step, for plain Python: charge, run, settle.

`step` is what an author declares, `request` its request to the ledger, `charge` one
execution, `iterations` the sub-steps of it and `run` whole runs; `plain` has `guarded`
and `spend`. It opens the ledger and the policies (`project`) and knows no Prefect.
"""
