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
    -- Numbers between commas: no sign, fraction, space or empty number.
    CONSTRAINT account_settled_check CHECK (
        settled GLOB '[[][0-9]*]'
        AND trim(substr(settled, 2, length(settled) - 2), ',0123456789') = ''
        AND instr(settled, ',,') = 0 AND instr(settled, ',]') = 0
    ),
    CONSTRAINT account_held_check CHECK (
        held GLOB '[[][0-9]*]'
        AND trim(substr(held, 2, length(held) - 2), ',0123456789') = ''
        AND instr(held, ',,') = 0 AND instr(held, ',]') = 0
    )
) STRICT, WITHOUT ROWID;
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
CREATE INDEX entry_rare ON entry (book, number, kind)
    WHERE kind NOT IN ('reserve', 'settle', 'void', 'seal');
CREATE INDEX entry_of_kind ON entry (book, kind, number)
    WHERE kind NOT IN ('reserve', 'settle', 'void', 'seal');
-- A charge is made once in a book, and ends there once.
CREATE UNIQUE INDEX entry_made ON entry (charge, book) WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_ended ON entry (charge, book)
    WHERE kind IN ('settle', 'void', 'forfeit', 'seal');
CREATE TRIGGER entry_is_kept BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_stays BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;

-- What `load` asks, in one statement: those of these parts that its keys need, each as
-- often as it has keys. A part gives the kind of a row and nine columns.
-- (?) stands for as many parameters as there are keys, ((?, ?)) for as many pairs.

-- name: load_ledger
SELECT 'epoch', epoch, ledger_id, min_writer, NULL, NULL, NULL, NULL, NULL, NULL
FROM ledger

-- name: load_book
SELECT 'book', book.name, book.number, book.hash, book.frozen, book.ran, book.terms,
    term.number, term.entry, NULL
FROM book
LEFT JOIN term ON term.book = book.name AND term.number = book.terms
WHERE book.name IN (?)

-- name: load_gate
SELECT 'account', account.id, account.book, account.entry, account.settled,
    account.held, account.overdrawn, account.told, NULL, NULL
FROM (VALUES ((?, ?))) AS gate
CROSS JOIN book ON book.name = gate.column1
CROSS JOIN account ON account.id = book.name || '#' || book.terms || gate.column2

-- name: load_account
SELECT 'account', id, book, entry, settled, held, overdrawn, told, NULL, NULL
FROM account WHERE id IN (?)

-- name: load_account_of_book
SELECT 'account', account.id, account.book, account.entry, account.settled,
    account.held, account.overdrawn, account.told, NULL, NULL
FROM book
CROSS JOIN account ON account.id >= book.name || '#' AND account.id < book.name || '$'
WHERE book.name IN (?)

-- name: load_term
SELECT 'term', term.book, term.number, term.entry, NULL, NULL, NULL, NULL, NULL, NULL
FROM (VALUES ((?, ?))) AS named
CROSS JOIN term ON term.book = named.column1 AND term.number = named.column2

-- name: load_term_of_book
SELECT 'term', book, number, entry, NULL, NULL, NULL, NULL, NULL, NULL
FROM term WHERE book IN (?)

-- name: load_charge
SELECT 'charge', id, state, owner, places, held, added, covers, key, epoch
FROM charge WHERE id IN (?)

-- name: load_release_of_charge
SELECT 'release', release.key, release.charge, release.book, release.state,
    release.digest, NULL, NULL, NULL, NULL
FROM charge CROSS JOIN release ON release.key = charge.key
WHERE charge.id IN (?)

-- name: load_book_of_charge
SELECT 'book', book.name, book.number, book.hash, book.frozen, book.ran, book.terms,
    NULL, NULL, NULL
FROM charge CROSS JOIN json_each(charge.places) AS place
CROSS JOIN book ON book.name = place.key
WHERE charge.id IN (?)

-- name: load_account_of_charge
SELECT 'account', account.id, account.book, account.entry, account.settled,
    account.held, account.overdrawn, account.told, NULL, NULL
FROM charge CROSS JOIN json_each(charge.held) AS part
CROSS JOIN account ON account.id = part.key
WHERE charge.id IN (?)

-- name: load_release
SELECT 'release', key, charge, book, state, digest, value, NULL, NULL, NULL
FROM release WHERE key IN (?)

-- name: load_charge_of_release
SELECT 'charge', charge.id, charge.state, charge.owner, charge.places, charge.held,
    charge.added, charge.covers, charge.key, charge.epoch
FROM release CROSS JOIN charge ON charge.id = release.charge
WHERE release.key IN (?)

-- name: load_run
SELECT 'run', id, refused, halted, preflight, unheld, NULL, NULL, NULL, NULL
FROM run WHERE id IN (?)

-- name: load_charge_of_run
SELECT 'charge', charge.id, charge.state, charge.owner, charge.places, charge.held,
    charge.added, charge.covers, charge.key, charge.epoch
FROM run CROSS JOIN charge ON charge.id = run.preflight
WHERE run.id IN (?)

-- name: load_granted
SELECT 'granted', granted.book, granted.step, granted.most, NULL, NULL, NULL, NULL,
    NULL, NULL
FROM (VALUES ((?, ?))) AS named
CROSS JOIN granted ON granted.book = named.column1 AND granted.step = named.column2

-- name: load_claim
SELECT 'claim', name, said, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM claim WHERE name IN (?)

-- name: entries
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, before.hash
FROM (VALUES ((?, ?))) AS named
CROSS JOIN entry ON entry.book = named.column1 AND entry.number = named.column2
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1;

-- name: after
SELECT book, number, kind, charge, postings, body, at, writer, hash
FROM entry WHERE book = :book AND number > :after ORDER BY number LIMIT :limit;

-- name: newest
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, before.hash
FROM entry
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND (:before IS NULL OR entry.number < :before)
ORDER BY entry.number DESC LIMIT :limit;

-- name: rare
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, before.hash
FROM entry INDEXED BY entry_rare
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND (:before IS NULL OR entry.number < :before)
    AND entry.kind NOT IN ('reserve', 'settle', 'void', 'seal')
ORDER BY entry.number DESC LIMIT :limit;

-- name: rare_of_kind
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, before.hash
FROM entry INDEXED BY entry_of_kind
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND (:before IS NULL OR entry.number < :before)
    AND entry.kind = :kind AND entry.kind NOT IN ('reserve', 'settle', 'void', 'seal')
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

-- What follows writes rows: (?) stands for as many as there are.

-- name: entry
INSERT INTO entry (book, number, kind, charge, postings, body, at, writer, hash)
VALUES ((?, ?, ?, ?, ?, ?, ?, ?, ?));

-- name: book
INSERT INTO book (name, number, hash, frozen, ran, terms)
VALUES ((?, ?, ?, ?, ?, ?))
ON CONFLICT (name) DO UPDATE SET number = excluded.number,
    hash = excluded.hash,
    frozen = excluded.frozen,
    ran = excluded.ran,
    terms = excluded.terms;

-- name: term
INSERT INTO term (book, number, entry)
VALUES ((?, ?, ?))
ON CONFLICT (book, number) DO UPDATE SET entry = excluded.entry;

-- name: account
INSERT INTO account (id, book, entry, settled, held, overdrawn, told)
VALUES ((?, ?, ?, ?, ?, ?, ?))
ON CONFLICT (id) DO UPDATE SET entry = excluded.entry,
    settled = excluded.settled,
    held = excluded.held,
    overdrawn = excluded.overdrawn,
    told = excluded.told;

-- name: charge
INSERT INTO charge (id, state, owner, places, held, added, covers, key, epoch)
VALUES ((?, ?, ?, ?, ?, ?, ?, ?, ?))
ON CONFLICT (id) DO UPDATE SET state = excluded.state,
    owner = excluded.owner,
    places = excluded.places,
    held = excluded.held,
    added = excluded.added;

-- name: release
INSERT INTO release (key, charge, book, state, digest, value)
VALUES ((?, ?, ?, ?, ?, ?))
ON CONFLICT (key) DO UPDATE SET charge = excluded.charge,
    book = excluded.book,
    state = excluded.state,
    digest = excluded.digest,
    value = excluded.value;

-- name: run
INSERT INTO run (id, refused, halted, preflight, unheld)
VALUES ((?, ?, ?, ?, ?))
ON CONFLICT (id) DO UPDATE SET refused = excluded.refused,
    halted = excluded.halted,
    preflight = excluded.preflight,
    unheld = excluded.unheld;

-- name: granted
INSERT INTO granted (book, step, most)
VALUES ((?, ?, ?))
ON CONFLICT (book, step) DO UPDATE SET most = excluded.most;

-- name: claim
INSERT INTO claim (name, said)
VALUES ((?, ?))
ON CONFLICT (name) DO UPDATE SET said = excluded.said;

-- name: epoch
UPDATE ledger SET epoch = ?;

-- name: drop_release
DELETE FROM release WHERE key IN (?);

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
