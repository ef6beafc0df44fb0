-- The statements of a ledger in SQLite, by name, beside those of every dialect.
-- Rows are what `journal.follow` makes of the entries; only entries are never changed.

-- name: schema
CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    ledger_id TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    min_writer INTEGER NOT NULL,
    release_secret TEXT NOT NULL,
    created_at TEXT NOT NULL,
    environment TEXT
) STRICT;
-- Every row by its key, as text; beside that of a release, the output that is kept.
CREATE TABLE row (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    output TEXT,
    -- Those of open charges, and few more: their second field is their state.
    open INTEGER NOT NULL GENERATED ALWAYS AS (instr(value, ',"open",') > 0) VIRTUAL
) STRICT, WITHOUT ROWID;
CREATE INDEX row_open ON row (key) WHERE open;
-- With a rowid: without one, an entry of more than 1,000 bytes takes a page of its own.
CREATE TABLE entry (
    book TEXT NOT NULL,
    number INTEGER NOT NULL CHECK (number > 0),
    kind TEXT NOT NULL,
    charge TEXT,
    postings TEXT NOT NULL,
    body TEXT NOT NULL,
    at TEXT NOT NULL,
    writer TEXT NOT NULL,
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (book, number)
) STRICT;
CREATE INDEX entry_rare ON entry (book, number, kind)
    WHERE kind NOT IN ('reserve', 'settle', 'void', 'seal');
-- A charge is made once in a book, and ends there once.
CREATE UNIQUE INDEX entry_made ON entry (charge, book) WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_ended ON entry (charge, book)
    WHERE kind IN ('settle', 'void', 'forfeit', 'seal');
CREATE TRIGGER entry_is_kept BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_stays BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

-- What is written.

-- name: new_entry
INSERT INTO entry (book, number, kind, charge, postings, body, at, writer, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: new_row
INSERT INTO row (key, value, output) VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, output = excluded.output

-- name: drop_row
DELETE FROM row WHERE key = ?

-- name: tables
SELECT count(*) FILTER (WHERE name = 'ledger'), count(*) FILTER (WHERE name = 'row')
FROM sqlite_master
