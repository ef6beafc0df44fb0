"""What a new project begins with: a policy, a ledger and a first flow that runs.

`project` makes what is missing, `texts` are the files. It knows no command line.
"""
