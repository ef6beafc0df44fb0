-- Negative amounts, and what is no JSON list that begins with a number, do not get into
-- the tables. Whether all of it are integers is checked where it is read: a pattern over
-- each digit would take longer than the rest of a charge.
-- SQLite cannot add a CHECK: three tables move. Their rows stay as they are.

CREATE TABLE account_moved (
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
    FOREIGN KEY (dataset, term) REFERENCES term (dataset, number),
    CONSTRAINT account_amounts CHECK (
        json_valid(settled) AND settled GLOB '[[][0-9]*' AND instr(settled, '-') = 0
        AND json_valid(held) AND held GLOB '[[][0-9]*' AND instr(held, '-') = 0)
) STRICT, WITHOUT ROWID;
INSERT INTO account_moved SELECT * FROM account;
DROP TABLE account;
ALTER TABLE account_moved RENAME TO account;

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
           ('open', 'amend', 'prior', 'repair', 'tighten', 'freeze', 'thaw')),
    CONSTRAINT entry_amounts CHECK (
        json_valid(amount) AND amount GLOB '[[][0-9]*' AND instr(amount, '-') = 0
        AND json_valid(settled_after) AND settled_after GLOB '[[][0-9]*'
        AND instr(settled_after, '-') = 0
        AND json_valid(held_after) AND held_after GLOB '[[][0-9]*'
        AND instr(held_after, '-') = 0)
) STRICT, WITHOUT ROWID;
INSERT INTO entry_moved SELECT * FROM entry;
DROP TABLE entry;
ALTER TABLE entry_moved RENAME TO entry;

CREATE UNIQUE INDEX entry_reserved ON entry (reservation, account)
    WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_closed ON entry (reservation, account)
    WHERE kind IN ('settle', 'void', 'forfeit', 'seal');
CREATE INDEX entry_drawn ON entry (reservation, account) WHERE kind = 'draw';
CREATE INDEX entry_forfeited ON entry (account) WHERE kind = 'forfeit';
CREATE TRIGGER entry_no_update BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_no_replace BEFORE INSERT ON entry
WHEN EXISTS (SELECT 1 FROM entry WHERE account = NEW.account AND seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_ordered AFTER INSERT ON entry
BEGIN INSERT OR REPLACE INTO entry_order (account, seq) VALUES (NEW.account, NEW.seq);
END;

CREATE TABLE granted_moved (
    account TEXT NOT NULL REFERENCES account (id),
    step TEXT NOT NULL,
    amount TEXT NOT NULL,
    PRIMARY KEY (account, step),
    CONSTRAINT granted_amounts CHECK (
        json_valid(amount) AND amount GLOB '[[][0-9]*' AND instr(amount, '-') = 0)
) STRICT, WITHOUT ROWID;
INSERT INTO granted_moved SELECT * FROM granted;
DROP TABLE granted;
ALTER TABLE granted_moved RENAME TO granted;

-- Older code writes only what the checks allow, so it may go on.
UPDATE ledger SET schema_version = 7;
