-- What is asked of a ledger's tables, by name, in words that SQLite and PostgreSQL share
-- (`postgres_transaction` says which words it replaces).

-- name: identity
SELECT ledger_id, min_writer FROM ledger

-- name: rows
SELECT row.key, row.value, row.output AS output
FROM json_each(:names) AS named JOIN row ON row.key = named.value

-- name: entries
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM json_each(:names) AS named
JOIN entry ON entry.book = substr(named.value, 1, instr(named.value, '#') - 1)
    AND entry.number = CAST(substr(named.value, instr(named.value, '#') + 1) AS bigint)
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1

-- name: after
SELECT book, number, kind, charge, postings, body, at, writer, hash
FROM entry WHERE book = :book AND number > :after ORDER BY number LIMIT :limit

-- name: newest
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND entry.number < :before
ORDER BY entry.number DESC LIMIT :limit

-- name: rare
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry INDEXED BY entry_rare
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND entry.number < :before
    AND entry.kind NOT IN ('reserve', 'settle', 'void', 'seal')
    AND CAST(:kind AS text) IN ('', entry.kind)
ORDER BY entry.number DESC LIMIT :limit

-- name: open_charges
SELECT key, value FROM row INDEXED BY row_open WHERE open

-- name: releases
SELECT row.key, row.value, length(row.output) FROM row
WHERE row.key > 'release:' AND row.key < 'release;'

-- name: charges_of
SELECT charge FROM entry
WHERE book >= :first AND book <= :last AND kind = 'reserve' AND instr(body, :text) > 0

-- name: kept
SELECT row.key, row.value, row.output FROM row
WHERE row.key > :above AND row.key < :below ORDER BY row.key LIMIT :limit

-- name: keys
SELECT key FROM row WHERE key >= :above AND key < :below

-- name: secret
SELECT release_secret FROM ledger

-- name: create_ledger
INSERT INTO ledger (one, ledger_id, schema_version, min_writer, release_secret,
    created_at, environment)
VALUES (1, :ledger, :version, :version, :secret, :created_at, :environment)

-- name: whole_identity
SELECT ledger_id, environment, created_at, min_writer FROM ledger
