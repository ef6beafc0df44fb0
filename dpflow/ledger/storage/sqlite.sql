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
    output TEXT
) STRICT, WITHOUT ROWID;
-- Those of open charges, and few more: their second field is their state.
CREATE INDEX row_open ON row (key) WHERE instr(value, ',"open",') > 0;
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

-- (?) stands for as many parameters as there are, ((?, ?)) for as many pairs, and what
-- is after "each" for as many of it.

-- Which ledger it is comes first. IN (...) would make a table of its own each time.

-- name: rows
SELECT NULL, ledger_id, min_writer FROM ledger
-- each
 UNION ALL SELECT key, value, output FROM row WHERE key = ?

-- name: entries
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, before.hash
FROM (VALUES ((?, ?))) AS named
CROSS JOIN entry ON entry.book = named.column1 AND entry.number = named.column2
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1

-- name: rare
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry INDEXED BY entry_rare
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND entry.number < :before
    AND entry.kind NOT IN ('reserve', 'settle', 'void', 'seal')
    AND :kind IN ('', entry.kind)
ORDER BY entry.number DESC LIMIT :limit

-- name: open_charges
SELECT key, value FROM row INDEXED BY row_open WHERE instr(value, ',"open",') > 0

-- name: releases
SELECT key, value, length(output) FROM row WHERE key > 'release:' AND key < 'release;'

-- name: charges_of
SELECT charge FROM entry
WHERE book >= :first AND book <= :last AND kind = 'reserve' AND instr(body, :text) > 0

-- name: kept
SELECT key, value, output FROM row
WHERE key > :above AND key < :below ORDER BY key LIMIT :limit

-- name: keys
SELECT key FROM row WHERE key >= :above AND key < :below

-- What is written.

-- name: new_entries
INSERT INTO entry (book, number, kind, charge, postings, body, at, writer, hash)
VALUES ((?, ?, ?, ?, ?, ?, ?, ?, ?))

-- name: new_rows
INSERT INTO row (key, value, output) VALUES ((?, ?, ?))
ON CONFLICT (key) DO UPDATE SET value = excluded.value, output = excluded.output

-- name: drop_rows
DELETE FROM row WHERE key IN (?)

-- name: create_ledger
INSERT INTO ledger (one, ledger_id, schema_version, min_writer, release_secret,
    created_at, environment)
VALUES (1, :ledger, :schema_version, :min_writer, :secret, :created_at, :environment)

-- What follows is asked of ledgers of other versions, too.

-- name: tables
SELECT count(*) FROM sqlite_master WHERE name = 'row'

-- name: identity
SELECT ledger_id, schema_version, min_writer, created_at FROM ledger

-- name: environment
SELECT environment FROM ledger
