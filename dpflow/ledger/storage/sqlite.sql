-- The tables of a ledger in SQLite, and what is written to them.

-- name: schema
CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    ledger_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    secret TEXT NOT NULL,
    created_at TEXT NOT NULL,
    environment TEXT
) STRICT;
CREATE TABLE entry (
    number INTEGER PRIMARY KEY CHECK (number > 0),
    kind TEXT NOT NULL CHECK (instr(kind, char(10)) = 0),
    charge TEXT CHECK (instr(charge, char(10)) = 0),
    rows TEXT NOT NULL,
    body TEXT NOT NULL,
    at TEXT NOT NULL CHECK (instr(at, char(10)) = 0),
    writer TEXT NOT NULL CHECK (instr(writer, char(10)) = 0),
    hash TEXT NOT NULL CHECK (length(hash) = 64)
) STRICT;
CREATE INDEX entry_rare ON entry (kind, number) WHERE kind NOT IN ({often});
-- A charge is made once, and ends once.
CREATE UNIQUE INDEX entry_made ON entry (charge) WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_ended ON entry (charge) WHERE kind IN ({ends});
-- Which entries name a key.
CREATE TABLE tag (
    key TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (key, number)
) STRICT, WITHOUT ROWID;
-- Values of releases; all that may be deleted.
CREATE TABLE kept (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TRIGGER entry_is_tagged AFTER INSERT ON entry
BEGIN INSERT INTO tag SELECT json_each.key, NEW.number FROM json_each(NEW.rows); END;
CREATE TRIGGER entry_is_kept BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_stays BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER tag_is_kept BEFORE DELETE ON tag
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER tag_stays BEFORE UPDATE ON tag
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER kept_stays BEFORE UPDATE ON kept
BEGIN SELECT RAISE(ABORT, 'a kept value is never changed'); END;

-- name: new_entry
INSERT INTO entry (number, kind, charge, rows, body, at, writer, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: drop_value
DELETE FROM kept WHERE key = ?

-- name: keep_value
INSERT INTO kept (key, value) VALUES (?, ?)
