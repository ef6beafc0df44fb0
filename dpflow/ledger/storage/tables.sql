-- The tables of a ledger and the questions to them, by name, in the words of SQLite;
-- `statements` replaces those that PostgreSQL has others for. Kinds in braces come from
-- `journal.KINDS`.

-- name: tables
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
-- The entries that name a key.
CREATE TABLE tag (
    key TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (key, number)
) STRICT, WITHOUT ROWID;
-- Values of releases; the only rows that may be deleted.
CREATE TABLE kept (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

-- name: new_entry
INSERT INTO entry (number, kind, charge, rows, body, at, writer, hash)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: drop_value
DELETE FROM kept WHERE key = ?

-- name: keep_value
INSERT INTO kept (key, value) VALUES (?, ?)

-- name: identity
SELECT ledger_id, environment, created_at, version FROM ledger

-- name: secret
SELECT secret FROM ledger

-- name: create_ledger
INSERT INTO ledger (one, ledger_id, version, secret, created_at, environment)
VALUES (1, :ledger, :version, :secret, :created_at, :environment)

-- name: head
SELECT number, hash FROM entry ORDER BY number DESC LIMIT 1

-- The newest entry of each key.
-- name: newest
SELECT named.value, (
    SELECT max(tag.number) FROM tag WHERE tag.key = named.value AND tag.number < :before
) FROM json_each(:names) AS named

-- These entries, others by their numbers, and those that began and ended charges.
-- name: entries
SELECT entry.number, entry.kind, entry.charge, entry.rows, entry.body, entry.at,
    entry.writer, entry.hash, coalesce(previous.hash, '')
FROM entry LEFT JOIN entry AS previous ON previous.number = entry.number - 1
WHERE entry.number IN (
    SELECT (
        SELECT max(tag.number) FROM tag
        WHERE tag.key = named.value AND tag.number < :before
    ) FROM json_each(:names) AS named
    UNION SELECT CAST(numbered.value AS bigint) FROM json_each(:numbers) AS numbered
    UNION SELECT (
        SELECT number FROM entry
        WHERE charge = charged.value AND kind = 'reserve' AND number < :before
    ) FROM json_each(:charges) AS charged
    UNION SELECT (
        SELECT number FROM entry
        WHERE charge = charged.value AND kind IN ({ends}) AND number < :before
    ) FROM json_each(:charges) AS charged
)

-- name: values
SELECT named.value, (SELECT value AS output FROM kept WHERE key = named.value)
FROM json_each(:names) AS named

-- name: sizes
SELECT kept.key, length(kept.value) AS output FROM json_each(:names) AS named
JOIN kept ON kept.key = named.value

-- But for those that their newest entry let go; it names a dataset or its accounts.
-- name: count_releases
SELECT count(*) FROM entry WHERE number IN (
    SELECT max(number) FROM tag WHERE key > 'release/' AND key < 'release0' GROUP BY key
) AND instr(rows, '"state":"free"') = 0
AND (instr(rows, :account) > 0 OR instr(rows, :book) > 0)

-- Each with the rows of the newest entry about it.
-- name: kept
SELECT kept.key, kept.value AS output, entry.rows
FROM kept LEFT JOIN entry ON entry.number = (
    SELECT max(tag.number) FROM tag WHERE tag.key = 'release/' || kept.key
)
WHERE kept.key > :above ORDER BY kept.key LIMIT :limit

-- name: page
SELECT number, kind, charge, rows, body, at, writer, hash
FROM entry WHERE number > :after ORDER BY number LIMIT :limit

-- The first key that an entry names without a tag.
-- name: untagged
SELECT named.key, entry.number FROM entry, json_each(entry.rows) AS named
WHERE entry.number > :after AND NOT EXISTS (
    SELECT 1 FROM tag WHERE tag.key = named.key AND tag.number = entry.number
) LIMIT 1

-- name: numbers_down
SELECT number FROM tag WHERE key = :key AND number < :end
ORDER BY number DESC LIMIT :limit

-- name: numbers_up
SELECT number FROM tag WHERE key = :key AND number > :end
ORDER BY number LIMIT :limit

-- name: rare
SELECT number FROM entry INDEXED BY entry_rare
WHERE kind = :key AND kind NOT IN ({often}) AND number < :end
ORDER BY number DESC LIMIT :limit

-- The keys between two texts, by a search for each.
-- name: names
WITH RECURSIVE found (key) AS (
    SELECT min(key) FROM tag WHERE key >= :first AND key < :last
    UNION ALL
    SELECT (SELECT min(tag.key) FROM tag WHERE tag.key > found.key AND tag.key < :last)
    FROM found WHERE found.key IS NOT NULL
)
SELECT key FROM found WHERE key IS NOT NULL

-- name: open_charges
SELECT made.charge FROM entry AS made
WHERE made.kind = 'reserve' AND NOT EXISTS (
    SELECT 1 FROM entry AS ended
    WHERE ended.charge = made.charge AND ended.kind IN ({ends})
)

-- name: with_text
SELECT number FROM entry WHERE kind = 'reserve' AND instr(body, :text) > 0

-- But for those of entries after the last.
-- name: tags
SELECT key, number FROM tag WHERE (key, number) > (:key, :number)
    AND (number <= :last OR number > (SELECT max(number) FROM entry))
ORDER BY key, number LIMIT 10000

-- name: made_twice
SELECT max(number), charge FROM entry WHERE kind = 'reserve'
GROUP BY charge HAVING count(*) > 1 LIMIT 1
