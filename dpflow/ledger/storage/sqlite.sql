-- Every statement of a ledger in SQLite, by name. Nothing else in dpflow holds SQL for it.
-- Rows are what `journal.follow` makes of the entries; only entries are never changed.

-- name: schema
CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    ledger_id TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    min_writer INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    release_secret TEXT NOT NULL,
    created_at TEXT NOT NULL,
    environment TEXT
) STRICT;
CREATE TABLE book (
    name TEXT PRIMARY KEY,
    number INTEGER NOT NULL,
    hash TEXT NOT NULL,
    frozen TEXT,
    ran TEXT NOT NULL,
    terms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE term (
    book TEXT NOT NULL,
    number INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    PRIMARY KEY (book, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE account (
    id TEXT PRIMARY KEY,
    book TEXT NOT NULL,
    entry INTEGER NOT NULL,
    settled TEXT NOT NULL,
    held TEXT NOT NULL,
    overdrawn INTEGER NOT NULL CHECK (overdrawn IN (0, 1)),
    told TEXT NOT NULL,
    -- A list of digits and commas: no sign, fraction, space or empty number.
    CHECK (settled GLOB '[[][0-9]*]' AND NOT settled GLOB '*[^][0-9,]*'),
    CHECK (held GLOB '[[][0-9]*]' AND NOT held GLOB '*[^][0-9,]*')
) STRICT, WITHOUT ROWID;
CREATE INDEX account_of_book ON account (book);
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
) STRICT, WITHOUT ROWID;
CREATE TABLE charge (
    id TEXT PRIMARY KEY,
    state TEXT NOT NULL
        CHECK (state IN ('open', 'settled', 'void', 'forfeited', 'sealed')),
    owner TEXT NOT NULL,
    places TEXT NOT NULL,
    held TEXT NOT NULL,
    added TEXT NOT NULL,
    covers TEXT,
    key TEXT,
    epoch INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX charge_open ON charge (id) WHERE state = 'open';
CREATE TABLE release (
    key TEXT PRIMARY KEY,
    charge TEXT NOT NULL,
    book TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('claimed', 'settled', 'forgotten')),
    digest TEXT,
    value TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE run (
    id TEXT PRIMARY KEY,
    refused TEXT NOT NULL,
    halted TEXT NOT NULL,
    preflight TEXT,
    unheld TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE granted (
    book TEXT NOT NULL,
    step TEXT NOT NULL,
    most TEXT NOT NULL,
    PRIMARY KEY (book, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE claim (
    name TEXT PRIMARY KEY,
    said TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_rare ON entry (book, number)
    WHERE kind NOT IN ('reserve', 'settle', 'void', 'seal');
CREATE TRIGGER entry_is_kept BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_stays BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

-- name: load
WITH
named_charge (id) AS (
    SELECT value FROM json_each(:charges)
    UNION SELECT charge FROM release
        WHERE key IN (SELECT value FROM json_each(:releases))
    UNION SELECT preflight FROM run
        WHERE id IN (SELECT value FROM json_each(:runs)) AND preflight IS NOT NULL
),
place (book, made) AS (
    SELECT part.key, json_extract(part.value, '$[0]')
    FROM charge, json_each(charge.places) AS part
    WHERE charge.id IN (SELECT id FROM named_charge)
),
named_account (id) AS (
    SELECT book.name || '#' || book.terms || json_extract(gate.value, '$[1]')
    FROM json_each(:gates) AS gate
    JOIN book ON book.name = json_extract(gate.value, '$[0]')
    UNION SELECT posting.key
        FROM place
        JOIN entry ON entry.book = place.book AND entry.number = place.made,
            json_each(entry.postings) AS posting
    UNION SELECT id FROM account WHERE book IN (SELECT value FROM json_each(:whole))
),
named_term (book, number) AS (
    SELECT name, terms FROM book WHERE name IN (SELECT value FROM json_each(:books))
    UNION SELECT book, number FROM term
        WHERE book IN (SELECT value FROM json_each(:whole))
    UNION SELECT substr(id, 1, instr(id, '#') - 1),
            CAST(substr(id, instr(id, '#') + 1) AS INTEGER)
        FROM named_account
)
SELECT 'epoch', epoch, ledger_id, min_writer, NULL, NULL, NULL, NULL, NULL, NULL
FROM ledger
UNION ALL
SELECT 'book', name, number, hash, frozen, ran, terms, NULL, NULL, NULL FROM book
WHERE name IN (SELECT value FROM json_each(:books) UNION SELECT book FROM place)
UNION ALL
SELECT 'term', term.book, term.number, term.entry, NULL, NULL, NULL, NULL, NULL, NULL
FROM named_term
JOIN term ON term.book = named_term.book AND term.number = named_term.number
UNION ALL
SELECT 'account', id, book, entry, settled, held, overdrawn, told, NULL, NULL
FROM account WHERE id IN (SELECT id FROM named_account)
UNION ALL
SELECT 'charge', id, state, owner, places, held, added, covers, key, epoch
FROM charge WHERE id IN (SELECT id FROM named_charge)
UNION ALL
SELECT 'release', key, charge, book, state, digest, value, NULL, NULL, NULL
FROM release
WHERE key IN (
    SELECT value FROM json_each(:releases)
    UNION SELECT key FROM charge WHERE id IN (SELECT id FROM named_charge)
)
UNION ALL
SELECT 'run', id, refused, halted, preflight, unheld, NULL, NULL, NULL, NULL
FROM run WHERE id IN (SELECT value FROM json_each(:runs))
UNION ALL
SELECT 'granted', granted.book, granted.step, granted.most, NULL, NULL, NULL, NULL,
    NULL, NULL
FROM json_each(:granted) AS wanted
JOIN granted ON granted.book = json_extract(wanted.value, '$[0]')
    AND granted.step = json_extract(wanted.value, '$[1]')
UNION ALL
SELECT 'claim', name, said, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM claim WHERE name IN (SELECT value FROM json_each(:claims));

-- name: entries
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM json_each(:wanted) AS wanted
JOIN entry ON entry.book = json_extract(wanted.value, '$[0]')
    AND entry.number = json_extract(wanted.value, '$[1]')
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1;

-- name: after
SELECT book, number, kind, charge, postings, body, at, writer, hash
FROM entry WHERE book = :book AND number > :after ORDER BY number LIMIT :limit;

-- name: newest
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND (:before IS NULL OR entry.number < :before)
ORDER BY entry.number DESC LIMIT :limit;

-- name: rare
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry INDEXED BY entry_rare
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND (:before IS NULL OR entry.number < :before)
    AND entry.kind NOT IN ('reserve', 'settle', 'void', 'seal')
ORDER BY entry.number DESC LIMIT :limit;

-- name: open_charges
SELECT id FROM charge WHERE state = 'open' ORDER BY id;

-- name: releases
SELECT key, charge, book, state, digest, length(value) FROM release ORDER BY key;

-- What follows reads rows as they are kept, for who checks all of them.

-- name: kept_book
SELECT * FROM book WHERE name > :above ORDER BY name LIMIT :limit;

-- name: kept_account
SELECT * FROM account WHERE id > :above ORDER BY id LIMIT :limit;

-- name: kept_charge
SELECT * FROM charge WHERE id > :above ORDER BY id LIMIT :limit;

-- name: kept_release
SELECT * FROM release WHERE key > :above ORDER BY key LIMIT :limit;

-- name: kept_run
SELECT * FROM run WHERE id > :above ORDER BY id LIMIT :limit;

-- name: kept_claim
SELECT * FROM claim WHERE name > :above ORDER BY name LIMIT :limit;

-- name: kept_term
SELECT * FROM term ORDER BY book, number;

-- name: kept_granted
SELECT * FROM granted ORDER BY book, step;

-- name: secret
SELECT release_secret FROM ledger;

-- name: books
SELECT name FROM book ORDER BY name;

-- name: entry
INSERT INTO entry (book, number, kind, charge, postings, body, at, writer, hash)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]'),
    json_extract(value, '$[6]'),
    json_extract(value, '$[7]'),
    json_extract(value, '$[8]')
FROM json_each(:rows);

-- What follows writes rows. WHERE TRUE keeps ON CONFLICT from being read as a join's.

-- name: book
INSERT INTO book (name, number, hash, frozen, ran, terms)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]')
FROM json_each(:rows) WHERE TRUE
ON CONFLICT (name) DO UPDATE SET number = excluded.number,
    hash = excluded.hash,
    frozen = excluded.frozen,
    ran = excluded.ran,
    terms = excluded.terms;

-- name: term
INSERT INTO term (book, number, entry)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]')
FROM json_each(:rows) WHERE TRUE
ON CONFLICT (book, number) DO UPDATE SET entry = excluded.entry;

-- name: account
INSERT INTO account (id, book, entry, settled, held, overdrawn, told)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]'),
    json_extract(value, '$[6]')
FROM json_each(:rows) WHERE TRUE
ON CONFLICT (id) DO UPDATE SET book = excluded.book,
    entry = excluded.entry,
    settled = excluded.settled,
    held = excluded.held,
    overdrawn = excluded.overdrawn,
    told = excluded.told;

-- name: charge
INSERT INTO charge (id, state, owner, places, held, added, covers, key, epoch)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]'),
    json_extract(value, '$[6]'),
    json_extract(value, '$[7]'),
    json_extract(value, '$[8]')
FROM json_each(:rows) WHERE TRUE
ON CONFLICT (id) DO UPDATE SET state = excluded.state,
    owner = excluded.owner,
    places = excluded.places,
    held = excluded.held,
    added = excluded.added,
    covers = excluded.covers,
    key = excluded.key,
    epoch = excluded.epoch;

-- name: release
INSERT INTO release (key, charge, book, state, digest, value)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]'),
    json_extract(value, '$[5]')
FROM json_each(:rows) WHERE TRUE
ON CONFLICT (key) DO UPDATE SET charge = excluded.charge,
    book = excluded.book,
    state = excluded.state,
    digest = excluded.digest,
    value = excluded.value;

-- name: run
INSERT INTO run (id, refused, halted, preflight, unheld)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]'),
    json_extract(value, '$[3]'),
    json_extract(value, '$[4]')
FROM json_each(:rows) WHERE TRUE
ON CONFLICT (id) DO UPDATE SET refused = excluded.refused,
    halted = excluded.halted,
    preflight = excluded.preflight,
    unheld = excluded.unheld;

-- name: granted
INSERT INTO granted (book, step, most)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]'),
    json_extract(value, '$[2]')
FROM json_each(:rows) WHERE TRUE
ON CONFLICT (book, step) DO UPDATE SET most = excluded.most;

-- name: claim
INSERT INTO claim (name, said)
SELECT json_extract(value, '$[0]'),
    json_extract(value, '$[1]')
FROM json_each(:rows) WHERE TRUE
ON CONFLICT (name) DO UPDATE SET said = excluded.said;

-- name: epoch
UPDATE ledger SET epoch = :epoch;

-- name: drop_release
DELETE FROM release WHERE key = :key;

-- name: create_ledger
INSERT INTO ledger (one, ledger_id, schema_version, min_writer, epoch, release_secret,
    created_at, environment)
VALUES (1, :ledger, :schema_version, :min_writer, 0, :secret, :created_at,
    :environment);

-- What follows is asked of ledgers of other versions, too.

-- name: tables
SELECT count(*) FROM sqlite_master WHERE name = 'book';

-- name: identity
SELECT ledger_id, schema_version, min_writer, created_at FROM ledger;

-- name: environment
SELECT environment FROM ledger;
