-- The ledger: one journal, append-only, and the sums that it implies.
-- All amounts are canonical JSON arrays of non-negative integers (units of 1e-36).

CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),       -- exactly one row
    ledger_id TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    min_writer INTEGER NOT NULL,                   -- oldest code version that may write
    epoch INTEGER NOT NULL CHECK (epoch >= 0),     -- counts conservative repairs
    release_secret TEXT NOT NULL,                  -- key of the release keys' digest
    created_at TEXT NOT NULL
) STRICT;

-- A stretch of a dataset's life under one set of guarantee-relevant policy fields.
CREATE TABLE term (
    dataset TEXT NOT NULL CHECK (length(dataset) BETWEEN 1 AND 200),
    number INTEGER NOT NULL CHECK (number >= 1),
    pinned TEXT NOT NULL,                          -- canonical JSON of the pinned fields
    policy_hash TEXT NOT NULL CHECK (length(policy_hash) = 64),
    opened_at TEXT NOT NULL,
    opened_by TEXT NOT NULL,
    because TEXT NOT NULL,
    PRIMARY KEY (dataset, number)
) STRICT, WITHOUT ROWID;

-- One tally under one theorem.
CREATE TABLE account (
    id TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 700),
    dataset TEXT NOT NULL,
    term INTEGER NOT NULL,
    kind TEXT NOT NULL
        CHECK (kind IN ('dataset', 'flow', 'odometer', 'partition', 'population')),
    name TEXT NOT NULL,                            -- flow, partition or population
    rule TEXT NOT NULL,                            -- canonical JSON: theorem, numbers
    halt TEXT,                                     -- odometer: reading that halts
    settled TEXT NOT NULL,
    held TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    head TEXT NOT NULL CHECK (length(head) = 64),  -- hash of the newest entry
    state TEXT NOT NULL CHECK (state IN ('open', 'frozen', 'overdrawn')),
    FOREIGN KEY (dataset, term) REFERENCES term (dataset, number)
) STRICT, WITHOUT ROWID;

-- The journal.
CREATE TABLE entry (
    account TEXT NOT NULL REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    kind TEXT NOT NULL
        CHECK (kind IN ('open', 'reserve', 'settle', 'void', 'forfeit', 'refuse')),
    reservation TEXT,
    amount TEXT NOT NULL,                          -- asked, posted or given back
    settled_after TEXT NOT NULL,
    held_after TEXT NOT NULL,
    run TEXT,                                      -- run of the flow that is charged
    body TEXT NOT NULL,                            -- canonical JSON; never data
    at TEXT NOT NULL,                              -- a label; no clock decides anything
    writer TEXT NOT NULL,
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (account, seq),
    CHECK (kind = 'open' OR reservation IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- One reserve and at most one end of it, on each account.
CREATE UNIQUE INDEX entry_reserved ON entry (reservation, account)
    WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_closed ON entry (reservation, account)
    WHERE kind IN ('settle', 'void', 'forfeit');
CREATE INDEX entry_forfeited ON entry (account) WHERE kind = 'forfeit';

CREATE TRIGGER entry_no_update BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
-- INSERT OR REPLACE would delete without asking the trigger above.
CREATE TRIGGER entry_no_replace BEFORE INSERT ON entry
WHEN EXISTS (SELECT 1 FROM entry WHERE account = NEW.account AND seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

-- The state of each charge over all its accounts.
CREATE TABLE reservation (
    id TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 200),
    fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
    owner TEXT NOT NULL,                           -- the process that reserved
    state TEXT NOT NULL
        CHECK (state IN ('open', 'settled', 'void', 'forfeited')),
    accounts TEXT NOT NULL,                        -- JSON array of account ids
    cost TEXT NOT NULL,                            -- JSON description
    step TEXT NOT NULL,
    release_key TEXT,
    body TEXT NOT NULL,
    at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX reservation_open ON reservation (id) WHERE state = 'open';

-- Which flow runs, subflows and their parents, met a refusal.
CREATE TABLE refused (
    run TEXT NOT NULL,
    account TEXT NOT NULL,
    seq INTEGER NOT NULL,
    charged INTEGER NOT NULL CHECK (charged IN (0, 1)),  -- 1: run of the charged flow
    PRIMARY KEY (run, account, seq),
    FOREIGN KEY (account, seq) REFERENCES entry (account, seq)
) STRICT, WITHOUT ROWID;

-- The largest amount that each step was ever granted: tells a mistyped cost
-- (refused) from a budget that ran out (exhausted).
CREATE TABLE granted (
    account TEXT NOT NULL REFERENCES account (id),
    step TEXT NOT NULL,
    amount TEXT NOT NULL,
    PRIMARY KEY (account, step)
) STRICT, WITHOUT ROWID;

-- Settled outputs, replayed at no cost; a claim marks the one that is being made.
CREATE TABLE release (
    release_key TEXT PRIMARY KEY CHECK (length(release_key) = 64),
    key_text TEXT NOT NULL,                        -- for people
    dataset TEXT NOT NULL,
    step TEXT NOT NULL,
    cost TEXT NOT NULL,
    reservation TEXT NOT NULL REFERENCES reservation (id),
    owner TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('claimed', 'settled')),
    value TEXT,                                    -- typed JSON; NULL: not replayable
    digest TEXT,                                   -- sha256 of the value
    at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
