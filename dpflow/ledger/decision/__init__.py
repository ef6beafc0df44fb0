"""What a ledger answers: pure functions of a state and a command.

No clock, database, environment or randomness: what a decision needs comes in the state,
whose rows were checked when they were loaded, and in the command. An answer comes with
the entries that say all of what it changes; nothing else is ever stored.
"""
