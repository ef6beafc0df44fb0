-- Statements of audits: everything, page by page. Both databases have the same words.

-- name: read_journal_page
SELECT {journal} FROM journal
WHERE dataset = :dataset AND number > :after
ORDER BY number
LIMIT :limit;

-- Every dataset that any table names.
-- name: read_named_datasets
SELECT name FROM dataset
UNION SELECT dataset FROM journal
UNION SELECT dataset FROM term
UNION SELECT dataset FROM source
UNION SELECT dataset FROM charge_dataset
UNION SELECT dataset FROM release
UNION SELECT dataset FROM evidence
ORDER BY name;

-- name: read_all_sources
SELECT {source} FROM source ORDER BY name;

-- Charges of a dataset, each with its reserve entry and its end.
-- name: read_charge_page
SELECT part.reserve_number, made.kind, made.charge, made.body, made.writer, made.step,
    made.flow, made.run, part.end_number, ended.kind, ended.charge, {charge}, made.postings,
    part.step, part.flow
FROM charge_dataset AS part
LEFT JOIN charge ON charge.id = part.charge
LEFT JOIN {made}
LEFT JOIN {ended}
WHERE part.dataset = :dataset AND part.reserve_number > :after
ORDER BY part.reserve_number
LIMIT :limit;

-- Entries that begin or end a charge and that no charge of the dataset names.
-- name: read_loose_entries
SELECT journal.number, journal.kind
FROM journal
LEFT JOIN charge_dataset AS part
    ON part.dataset = journal.dataset AND part.charge = journal.charge
        AND (part.reserve_number = journal.number OR part.end_number = journal.number)
WHERE journal.dataset = :dataset
    AND journal.kind IN ('reserve', 'settle', 'void', 'forfeit')
    AND part.charge IS NULL
ORDER BY journal.number
LIMIT 100;

-- Releases of a dataset, each with the end of the charge that made it.
-- An empty text keeps SQLite from an index of datasets: it would read or sort all.
-- name: read_release_page
SELECT release.key, release.key_text, release.step, release.charge, release.state,
    release.digest, charge.release_key, charge.step, charge.request, charge.state,
    ended.body, (
        SELECT max(withdrawn.number) FROM journal AS withdrawn
        WHERE withdrawn.kind NOT IN ('reserve', 'settle', 'void', 'pay')
            AND withdrawn.kind = 'withdraw' AND withdrawn.charge = release.charge
            AND withdrawn.dataset || '' = release.dataset
    )
FROM release
LEFT JOIN charge ON charge.id = release.charge
LEFT JOIN charge_dataset AS part
    ON part.charge = release.charge AND part.dataset = release.dataset
LEFT JOIN {ended}
WHERE release.dataset || '' = :dataset AND release.key > :after
ORDER BY release.key
LIMIT :limit;

-- name: read_values
SELECT key, charge, digest, value FROM release
WHERE dataset || '' = :dataset AND key > :after AND value IS NOT NULL
ORDER BY key
LIMIT :limit;

-- Charges with a release key that no release has.
-- name: read_lost_releases
SELECT charge.id
FROM charge_dataset AS part JOIN charge ON charge.id = part.charge
LEFT JOIN release ON release.key = charge.release_key
WHERE part.dataset = :dataset AND charge.release_key IS NOT NULL AND release.key IS NULL
LIMIT 100;

-- Flow runs of a dataset that were refused.
-- name: read_runs_of
SELECT id, refusals, halted FROM run
WHERE dataset = :dataset AND (refusals > 0 OR halted IS NOT NULL);

-- name: read_evidence_of
SELECT {evidence} FROM evidence WHERE dataset = :dataset;

-- name: read_people_of
SELECT {people_store} FROM people_store WHERE account >= :first AND account < :last;

-- name: read_newest_repair
SELECT body FROM journal
WHERE dataset = :dataset AND kind = 'repair'
ORDER BY number DESC
LIMIT 1;
