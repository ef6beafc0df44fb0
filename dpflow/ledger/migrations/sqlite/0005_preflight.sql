-- Flow runs that hold their whole worst case before the first step.

-- SQLite cannot alter a CHECK: charges move into a table that allows one more end.
CREATE TABLE reservation_moved (
    id TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 200),
    fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
    owner TEXT NOT NULL,                           -- the process that reserved
    state TEXT NOT NULL
        CHECK (state IN ('open', 'settled', 'void', 'forfeited', 'sealed')),
    accounts TEXT NOT NULL,                        -- JSON array of account ids
    cost TEXT NOT NULL,                            -- JSON description
    step TEXT NOT NULL,
    release_key TEXT,
    body TEXT NOT NULL,
    at TEXT NOT NULL,
    datasets TEXT
) STRICT, WITHOUT ROWID;
INSERT INTO reservation_moved
    (id, fingerprint, owner, state, accounts, cost, step, release_key, body, at,
     datasets)
SELECT id, fingerprint, owner, state, accounts, cost, step, release_key, body, at,
       datasets
FROM reservation;
DROP TABLE reservation;
ALTER TABLE reservation_moved RENAME TO reservation;
CREATE INDEX reservation_open ON reservation (id) WHERE state = 'open';

-- Which reservations hold a whole run, and which run; a run may have several in turn.
CREATE TABLE preflight (
    reservation TEXT PRIMARY KEY REFERENCES reservation (id),
    owner TEXT NOT NULL,                           -- the process that runs it now
    run TEXT NOT NULL,
    number INTEGER NOT NULL CHECK (number >= 1),
    epoch INTEGER NOT NULL,                        -- the ledger's, when it was made
    UNIQUE (run, number)
) STRICT, WITHOUT ROWID;

-- A seal is an end like the others: each charge has one on each account.
DROP INDEX entry_closed;
CREATE UNIQUE INDEX entry_closed ON entry (reservation, account)
    WHERE kind IN ('settle', 'void', 'forfeit', 'seal');
CREATE INDEX entry_drawn ON entry (reservation, account) WHERE kind = 'draw';

UPDATE ledger SET schema_version = 5, min_writer = 5;
