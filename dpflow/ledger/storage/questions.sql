-- What is asked of a ledger's tables in every dialect, by name: for views and audits.

-- name: after
SELECT book, number, kind, charge, postings, body, at, writer, hash
FROM entry WHERE book = :book AND number > CAST(:after AS bigint)
ORDER BY number LIMIT CAST(:limit AS bigint)

-- name: newest
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND entry.number < CAST(:before AS bigint)
ORDER BY entry.number DESC LIMIT CAST(:limit AS bigint)

-- name: secret
SELECT release_secret FROM ledger
