-- Statements of views: what people and programs read. Both databases have the same words.
-- A range of names is one dataset, or all of them.
-- A list is `IN (SELECT value FROM json_each(:list))`, also for PostgreSQL.

-- name: read_every_dataset
SELECT {dataset} FROM dataset ORDER BY name;

-- Accounts of newest terms and of windows, of each whole term, and overdrawn ones.
-- name: read_current_accounts
SELECT {account}
FROM (
    SELECT name, name || '#' || term || '/' AS first, name || '#' || term || '0' AS last,
        0 AS overdrawn
    FROM dataset
    UNION ALL SELECT name, name || '#/', name || '#0', 0 FROM dataset
    UNION ALL SELECT name, name || '#', name || '$', 1 FROM dataset
    UNION ALL SELECT dataset, dataset || '#' || number, dataset || '#' || number || '!', 0
    FROM term
) AS part
JOIN account ON account.id >= part.first AND account.id < part.last
    AND account.overdrawn >= part.overdrawn
WHERE part.name >= :first AND part.name <= :last;

-- Each open charge with the entries that made it.
-- name: read_open_reservations
SELECT made.at, made.dataset, made.number, made.writer, {charge}
FROM charge
JOIN charge_dataset AS part ON part.charge = charge.id
JOIN {made}
WHERE charge.state = 'open'
ORDER BY made.at, made.dataset, made.number;

-- What people decided, and what was charged or closed by hand.
-- name: read_decisions
SELECT {journal} FROM journal
WHERE kind NOT IN ('reserve', 'settle', 'void', 'pay')
    AND kind IN (
        'open', 'tighten', 'access', 'freeze', 'unfreeze', 'forfeit', 'adjust', 'repair',
        'upgrade'
    )
    AND dataset >= :first AND dataset <= :last
ORDER BY dataset, number;

-- The newest refusals of a dataset. With a bound of the numbers, SQLite takes the index
-- of rare kinds.
-- name: read_refusals
SELECT {journal} FROM journal
WHERE kind NOT IN ('reserve', 'settle', 'void', 'pay') AND kind = 'refuse'
    AND dataset = :dataset AND number < :after
ORDER BY number DESC
LIMIT :limit;

-- name: read_run
SELECT {run} FROM run WHERE id = :id;

-- name: read_refused_runs
SELECT DISTINCT id FROM run WHERE refusals > 0;

-- The newest charge of each flow on a dataset.
-- name: read_newest_grants
SELECT newest.flow, newest.number, journal.at
FROM (
    SELECT flow, max(reserve_number) AS number
    FROM charge_dataset
    WHERE dataset = :dataset
    GROUP BY flow
) AS newest
JOIN journal ON journal.dataset = :dataset AND journal.number = newest.number;

-- Charges of a dataset, without what they cost; every run is found by them.
-- name: read_run_charges
SELECT part.reserve_number, part.charge, part.flow, charge.run, release.key_text,
    charge.state,
    coalesce(ended.at, (
        SELECT made.at FROM journal AS made
        WHERE made.dataset = part.dataset AND made.number = part.reserve_number
    )),
    CASE WHEN ended.body LIKE :failed THEN 1 ELSE 0 END
FROM charge_dataset AS part JOIN charge ON charge.id = part.charge
LEFT JOIN {ended}
LEFT JOIN release ON release.key = charge.release_key
WHERE part.dataset = :dataset AND part.reserve_number > :after
ORDER BY part.reserve_number;

-- Some charges of a dataset with the entries that made and ended them; a population's
-- postings come with those of its member.
-- name: read_charge_lines
SELECT part.reserve_number, made.at, made.writer, part.end_number, ended.body,
    ended.postings, above.postings, {charge}
FROM charge_dataset AS part JOIN charge ON charge.id = part.charge
JOIN {made}
LEFT JOIN {ended}
LEFT JOIN charge_dataset AS upper
    ON upper.charge = part.charge AND upper.dataset = :population
LEFT JOIN journal AS above
    ON above.dataset = upper.dataset AND above.number = upper.end_number
WHERE part.dataset = :dataset
    AND part.reserve_number IN (SELECT value FROM json_each(:numbers));

-- Ended charges of a dataset that posted the same, with their number and newest time.
-- name: read_ends
SELECT part.flow, part.step, substr(ended.at, 1, 10),
    CASE WHEN :release = 1 THEN json_extract(charge.request, '$.key_text') END,
    CASE WHEN :who = 1 THEN coalesce(
        json_extract(ended.body, '$.who'), json_extract(charge.request, '$.who'), made.writer
    ) END,
    CASE WHEN :cost = 1 THEN json_extract(charge.request, '$.cost') END,
    json_extract(ended.body, '$.noise'), ended.kind, ended.postings,
    json_extract(ended.body, '$.outcome'),
    coalesce(json_extract(ended.body, '$.error'), json_extract(ended.body, '$.error_type')),
    count(*), max(ended.at)
FROM charge_dataset AS part JOIN charge ON charge.id = part.charge
JOIN {made}
JOIN {ended}
WHERE part.dataset = :dataset AND part.reserve_number > :after
    AND part.reserve_number < :before
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11;

-- name: read_postings
SELECT number, postings FROM journal
WHERE dataset = :dataset AND number > :after
ORDER BY number;

-- Some entries, with the release keys of their charges, or of refused steps.
-- name: read_entries_at
SELECT journal.number, journal.kind, journal.at,
    coalesce(release.key_text, json_extract(journal.body, '$.key_text'))
FROM journal
LEFT JOIN charge ON charge.id = journal.charge
LEFT JOIN release ON release.key = charge.release_key
WHERE journal.dataset = :dataset
    AND journal.number IN (SELECT value FROM json_each(:numbers));

-- Entries that raised an alert.
-- name: read_alerts
SELECT number, at, body FROM journal
WHERE dataset = :dataset AND number > :after
    AND kind IN ('settle', 'forfeit', 'adjust', 'repair') AND body LIKE :pattern
ORDER BY number DESC;

-- Entries of a dataset, the newest first.
-- name: read_newest_entries
SELECT {journal} FROM journal
WHERE dataset = :dataset AND number < :after
ORDER BY number DESC
LIMIT :limit;

-- name: read_first_release
SELECT at FROM journal
WHERE dataset = :dataset AND kind = 'settle' AND number <= :number AND body LIKE :pattern
ORDER BY number
LIMIT 1;

-- name: read_first_charges
SELECT reserve_number FROM charge_dataset
WHERE dataset = :dataset AND reserve_number > :after AND reserve_number <= :before
ORDER BY reserve_number
LIMIT 1;

-- Releases of a dataset, those that were claimed last first.
-- name: read_releases
SELECT part.reserve_number, made.at, release.key, release.key_text, release.dataset,
    release.step, release.charge, release.state, release.digest, ended.body, charge.flow,
    charge.request
FROM charge_dataset AS part JOIN charge ON charge.id = part.charge
JOIN release ON release.key = charge.release_key AND release.charge = charge.id
JOIN {made}
LEFT JOIN {ended}
WHERE part.dataset = :dataset AND part.reserve_number < :after
    AND release.state <> 'free'
ORDER BY part.reserve_number DESC
LIMIT :limit;

-- Releases whose key text is a name, or whose key begins with it.
-- name: find_releases
SELECT part.dataset, part.reserve_number
FROM release JOIN charge_dataset AS part
    ON part.charge = release.charge AND part.dataset = release.dataset
WHERE release.state <> 'free'
    AND (release.key_text = :name OR (release.key >= :first AND release.key < :last));

-- name: read_release_state
SELECT state FROM release WHERE key = :key;

-- name: read_release_values
SELECT key, value FROM release
WHERE value IS NOT NULL AND key IN (SELECT value FROM json_each(:keys));

-- name: count_releases
SELECT count(*) FROM release WHERE state <> 'free';

-- name: count_releases_of
SELECT count(*)
FROM charge_dataset AS part JOIN charge ON charge.id = part.charge
JOIN release ON release.key = charge.release_key AND release.charge = charge.id
WHERE part.dataset = :dataset AND release.state <> 'free';

-- Newest completed runs of a flow that met no refusal.
-- name: read_completed_runs
SELECT newest.run
FROM (
    SELECT charge.run, part.reserve_number
    FROM charge_dataset AS part JOIN charge ON charge.id = part.charge
    WHERE part.dataset = :dataset AND part.flow = :flow
    ORDER BY part.reserve_number DESC
    LIMIT :charges
) AS newest
JOIN run ON run.id = newest.run AND run.dataset = :dataset
WHERE run.completed = 1 AND run.refusals = 0
GROUP BY newest.run
ORDER BY max(newest.reserve_number) DESC
LIMIT :runs;

-- Charges of flow runs, in the order in which they were made.
-- name: read_charges_of_runs
SELECT {charge}
FROM charge
JOIN charge_dataset AS part ON part.charge = charge.id
JOIN {made}
WHERE charge.run IN (SELECT value FROM json_each(:runs))
ORDER BY made.at, part.dataset, part.reserve_number;
