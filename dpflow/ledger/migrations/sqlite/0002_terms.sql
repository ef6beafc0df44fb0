-- Operators' entries, populations and partitions, signed checkpoints, terms that
-- carry what their policy declared.

-- SQLite cannot alter a CHECK: the journal moves into a table that allows more kinds.
-- Its rows, and so their hashes, stay as they are.
CREATE TABLE entry_moved (
    account TEXT NOT NULL REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    kind TEXT NOT NULL
        CHECK (kind IN ('open', 'reserve', 'settle', 'void', 'forfeit', 'refuse',
                        'draw', 'seal',                      -- a run reserved as a whole
                        'amend', 'prior', 'repair',          -- these only raise usage
                        'tighten', 'freeze', 'thaw')),
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
    CHECK (reservation IS NOT NULL OR kind IN
           ('open', 'amend', 'prior', 'repair', 'tighten', 'freeze', 'thaw'))
) STRICT, WITHOUT ROWID;
INSERT INTO entry_moved SELECT * FROM entry;
DROP TABLE entry;
ALTER TABLE entry_moved RENAME TO entry;

CREATE UNIQUE INDEX entry_reserved ON entry (reservation, account)
    WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_closed ON entry (reservation, account)
    WHERE kind IN ('settle', 'void', 'forfeit');
CREATE INDEX entry_forfeited ON entry (account) WHERE kind = 'forfeit';
CREATE TRIGGER entry_no_update BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_no_replace BEFORE INSERT ON entry
WHEN EXISTS (SELECT 1 FROM entry WHERE account = NEW.account AND seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

-- What the policy declared, before any number was derived from it.
ALTER TABLE term ADD COLUMN declared TEXT;

-- What to lock before a charge ends; the file's lock served for older ones.
ALTER TABLE reservation ADD COLUMN datasets TEXT;

-- Heads of accounts that someone with the ledger's key has signed.
CREATE TABLE checkpoint (
    account TEXT NOT NULL REFERENCES account (id),
    seq INTEGER NOT NULL CHECK (seq >= 1),
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    signature TEXT NOT NULL CHECK (length(signature) = 64),
    at TEXT NOT NULL,
    writer TEXT NOT NULL,
    PRIMARY KEY (account, seq)
) STRICT, WITHOUT ROWID;

UPDATE ledger SET schema_version = 2, min_writer = 2;
