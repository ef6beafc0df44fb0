-- Statements that both databases have in the same words.
-- A list is `IN (SELECT value FROM json_each(:list))`, also for PostgreSQL.
-- A word in braces, such as {charge}, is a part that `write_parts` explains.

-- name: complete_ledger
UPDATE ledger SET complete = 1 WHERE complete = 0;

-- name: set_version
UPDATE ledger SET version = :version;

-- name: mark_moving
UPDATE ledger SET moving_to = :moving_to;

-- name: mark_moved
UPDATE ledger SET moved_to = :moved_to;

-- name: read_secret
SELECT secret FROM ledger;

-- A charge, and the release of its key.
-- name: read_charge
SELECT {charge}, {release}
FROM charge LEFT JOIN release ON release.key = charge.release_key
WHERE charge.id = :id;

-- The datasets of a charge, each with the entry that ended the charge there.
-- name: read_charge_datasets
SELECT part.dataset, part.reserve_number, part.charge, part.end_number, part.flow,
    part.step, ended.command, ended.hash, ended.postings, made.hash
FROM charge_dataset AS part
LEFT JOIN {ended}
LEFT JOIN {made}
WHERE part.charge = :charge
ORDER BY part.dataset;

-- A release, and the charge that claims or made it, whose owner may run.
-- name: read_release
SELECT {charge}, {release}
FROM release LEFT JOIN charge ON charge.id = release.charge
WHERE release.key = :key;

-- The newest charges of a step: was as much granted to it before?
-- name: read_earlier_charges
SELECT charge.amounts
FROM charge_dataset JOIN charge ON charge.id = charge_dataset.charge
WHERE charge_dataset.dataset = :dataset AND charge_dataset.step = :step
ORDER BY charge_dataset.reserve_number DESC
LIMIT 100;

-- name: read_hash
SELECT hash FROM journal WHERE dataset = :dataset AND number = :number;

-- name: read_hashes
SELECT number, hash FROM journal
WHERE dataset = :dataset AND number IN (SELECT value FROM json_each(:numbers));

-- name: read_sources
SELECT {term} FROM term ORDER BY dataset, number;

-- Flows that were charged since the newest term of a dataset was opened.
-- name: read_charged_flows
SELECT DISTINCT charged.flow FROM (
    SELECT flow, reserve_number AS number FROM charge_dataset WHERE dataset = :dataset
    UNION ALL
    SELECT flow, number FROM journal WHERE dataset = :dataset AND kind = 'adjust'
) AS charged
WHERE charged.flow IS NOT NULL AND charged.number > (
    SELECT coalesce(max(number), 0) FROM journal WHERE dataset = :dataset AND kind = 'open'
);

-- name: read_accounts_between
SELECT {account} FROM account
WHERE id >= :first AND id < :last
ORDER BY id;

-- name: read_evidence
SELECT {evidence} FROM evidence WHERE digest = :digest;

-- name: read_people_store
SELECT {people_store} FROM people_store WHERE account = :account;

-- name: insert_dataset
{insert_dataset} ON CONFLICT (name) DO NOTHING;

-- name: advance_dataset
UPDATE dataset SET number = :number, hash = :hash, mark = :mark WHERE name = :name;

-- name: update_source
UPDATE source SET dataset = :dataset, population = :population WHERE name = :name;

-- name: rewrite_request
UPDATE charge SET request = :request, mark = :mark WHERE id = :id;

-- name: update_charge
UPDATE charge
SET state = :state, amounts = :amounts, realised = :realised, mark = :mark
WHERE id = :id;

-- name: end_charge_dataset
UPDATE charge_dataset SET end_number = :end_number
WHERE dataset = :dataset AND reserve_number = :reserve_number;

-- A flow run whose function returned, in each dataset that it charged.
-- name: complete_run
INSERT INTO run (id, dataset, flow, refusals, halted, completed)
SELECT DISTINCT charge.run, part.dataset, charge.flow, 0, NULL, 1
FROM charge JOIN charge_dataset AS part ON part.charge = charge.id
WHERE charge.run = :id
ON CONFLICT (id, dataset) DO UPDATE SET completed = 1;

-- name: put_people_store
{insert_people_store} ON CONFLICT (account) DO UPDATE SET newest = excluded.newest;

-- name: read_newest_hashes
SELECT journal.dataset, journal.number, journal.hash
FROM journal JOIN dataset ON dataset.name = journal.dataset
WHERE journal.number > dataset.number - 1000
    OR journal.number / 100 * 100 = journal.number;

-- name: read_ledger
SELECT id, version, environment, created_at, complete, moving_to, moved_to
FROM ledger;

-- name: read_datasets
SELECT {dataset} FROM dataset
WHERE name IN (SELECT value FROM json_each(:names))
ORDER BY name;

-- name: read_terms
SELECT {term} FROM term
WHERE dataset IN (SELECT value FROM json_each(:datasets))
ORDER BY dataset, number;

-- name: read_accounts
SELECT {account} FROM account WHERE id IN (SELECT value FROM json_each(:ids));

-- name: read_charges
SELECT {charge} FROM charge WHERE id IN (SELECT value FROM json_each(:ids));

-- name: read_runs
SELECT {run} FROM run
WHERE id IN (SELECT value FROM json_each(:ids))
    AND dataset IN (SELECT value FROM json_each(:datasets));

-- name: find_command
SELECT {journal} FROM journal
WHERE dataset IN (SELECT value FROM json_each(:datasets)) AND command = :command
    AND kind NOT IN ('reserve', 'settle', 'void', 'forfeit')
ORDER BY dataset, number;
