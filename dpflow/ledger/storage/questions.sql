-- What is asked of a ledger's tables, by name, in words that SQLite and PostgreSQL share
-- (`statements` says which words it replaces). Kinds in braces come from `journal.KINDS`.

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
-- name: told
SELECT entry.number, entry.kind, entry.charge, entry.rows, entry.body, entry.at,
    entry.writer, entry.hash, coalesce(previous.hash, '')
FROM entry LEFT JOIN entry AS previous ON previous.number = entry.number - 1
WHERE entry.number IN (
    SELECT (
        SELECT max(tag.number) FROM tag
        WHERE tag.key = named.value AND tag.number < :before
    ) FROM json_each(:names) AS named
    UNION SELECT CAST(numbered.value AS bigint) FROM json_each(:numbers) AS numbered
    UNION SELECT made.number
    FROM json_each(:charges) AS charged JOIN entry AS made
        ON made.charge = charged.value AND made.kind = 'reserve'
    WHERE made.number < :before
    UNION SELECT ended.number
    FROM json_each(:charges) AS charged JOIN entry AS ended
        ON ended.charge = charged.value AND ended.kind IN ({ends})
    WHERE ended.number < :before
)

-- name: values
SELECT kept.key, kept.value AS output FROM json_each(:names) AS named
JOIN kept ON kept.key = named.value

-- name: sizes
SELECT kept.key, length(kept.value) AS output FROM json_each(:names) AS named
JOIN kept ON kept.key = named.value

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

-- name: numbers_down
SELECT number FROM tag WHERE key = :key AND number < :before
ORDER BY number DESC LIMIT :limit

-- name: numbers_up
SELECT number FROM tag WHERE key = :key AND number > :after
ORDER BY number LIMIT :limit

-- name: rare
SELECT number FROM entry INDEXED BY entry_rare
WHERE kind = :kind AND kind NOT IN ({often}) AND number < :before
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

-- name: tags
SELECT count(*) FROM tag

-- The keys of some entries that have no tag.
-- name: untagged
SELECT entry.number, named.key FROM entry, json_each(entry.rows) AS named
WHERE entry.number > :after AND entry.number <= :until AND NOT EXISTS (
    SELECT 1 FROM tag WHERE tag.key = named.key AND tag.number = entry.number
)

-- name: made_twice
SELECT max(number), charge FROM entry WHERE kind = 'reserve'
GROUP BY charge HAVING count(*) > 1 LIMIT 1
