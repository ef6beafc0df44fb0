-- Statements that both databases have in the same words.
-- A list is `IN (SELECT value FROM json_each(:list))`, also for PostgreSQL.

-- name: create_ledger
INSERT INTO ledger (
    one, id, version, secret, environment, created_at, complete, moving_to, moved_to
) VALUES (1, :id, :version, :secret, :environment, :created_at, :complete, NULL, NULL);

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
SELECT charge.id, charge.state, charge.owner, charge.login, charge.step, charge.flow,
    charge.run, charge.release_key, charge.request, charge.amounts, charge.realised,
    charge.mark,
    release.key, release.key_text, release.dataset, release.step, release.charge,
    release.state, release.digest, release.arguments, release.shape, release.value
FROM charge LEFT JOIN release ON release.key = charge.release_key
WHERE charge.id = :id;

-- The datasets of a charge, each with the entry that ended the charge there.
-- name: read_charge_datasets
SELECT part.dataset, part.reserve_number, part.charge, part.end_number, part.flow,
    part.step, ended.kind, ended.command, ended.hash, ended.postings, made.hash
FROM charge_dataset AS part
LEFT JOIN journal AS ended
    ON ended.dataset = part.dataset AND ended.number = part.end_number
LEFT JOIN journal AS made
    ON made.dataset = part.dataset AND made.number = part.reserve_number
WHERE part.charge = :charge
ORDER BY part.dataset;

-- A release, and the charge that claims or made it, whose owner may run.
-- name: read_release
SELECT charge.id, charge.state, charge.owner, charge.login, charge.step, charge.flow,
    charge.run, charge.release_key, charge.request, charge.amounts, charge.realised,
    charge.mark,
    release.key, release.key_text, release.dataset, release.step, release.charge,
    release.state, release.digest, release.arguments, release.shape, release.value
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

-- name: read_sources
SELECT term.dataset, term.number, term.revision, term.body
FROM term
ORDER BY term.dataset, term.number;

-- Flows that were charged since the newest term of a dataset was opened.
-- name: read_charged_flows
SELECT DISTINCT flow FROM charge_dataset
WHERE dataset = :dataset AND flow IS NOT NULL AND reserve_number > (
    SELECT coalesce(max(number), 0) FROM journal
    WHERE dataset = :dataset AND kind = 'open'
)
UNION
SELECT flow FROM journal
WHERE dataset = :dataset AND kind = 'adjust' AND flow IS NOT NULL AND number > (
    SELECT coalesce(max(number), 0) FROM journal
    WHERE dataset = :dataset AND kind = 'open'
);

-- name: read_accounts_between
SELECT id, settled, held, version, alerted, overdrawn, mark
FROM account
WHERE id >= :first AND id < :last
ORDER BY id;

-- name: read_evidence
SELECT dataset, term, digest, number FROM evidence WHERE digest = :digest;

-- name: read_people_store
SELECT account, first, newest FROM people_store WHERE account = :account;

-- name: insert_dataset
INSERT INTO dataset (
    name, term, revision, frozen, epoch, repaired_at, number, hash, mark
) VALUES (:name, 0, 0, NULL, 0, 0, 0, :hash, :mark)
ON CONFLICT (name) DO NOTHING;

-- name: advance_dataset
UPDATE dataset SET number = :number, hash = :hash, mark = :mark WHERE name = :name;

-- name: update_dataset
UPDATE dataset
SET term = :term, revision = :revision, frozen = :frozen, epoch = :epoch,
    repaired_at = :repaired_at, number = :number, hash = :hash, mark = :mark
WHERE name = :name;

-- name: insert_entry
INSERT INTO journal (
    dataset, number, at, writer, kind, command, charge, step, flow, run, postings, body,
    hash
) VALUES (
    :dataset, :number, :at, :writer, :kind, :command, :charge, :step, :flow, :run,
    :postings, :body, :hash
);

-- name: put_term
INSERT INTO term (dataset, number, revision, body)
VALUES (:dataset, :number, :revision, :body)
ON CONFLICT (dataset, number)
DO UPDATE SET revision = excluded.revision, body = excluded.body;

-- name: insert_source
INSERT INTO source (name, dataset, population) VALUES (:name, :dataset, :population);

-- name: update_source
UPDATE source SET dataset = :dataset, population = :population WHERE name = :name;

-- name: put_account
INSERT INTO account (id, settled, held, version, alerted, overdrawn, mark)
VALUES (:id, :settled, :held, :version, :alerted, :overdrawn, :mark)
ON CONFLICT (id) DO UPDATE SET settled = excluded.settled, held = excluded.held,
    version = excluded.version, alerted = excluded.alerted,
    overdrawn = excluded.overdrawn, mark = excluded.mark;

-- name: insert_charge
INSERT INTO charge (
    id, state, owner, login, step, flow, run, release_key, request, amounts, realised, mark
) VALUES (
    :id, :state, :owner, :login, :step, :flow, :run, :release_key, :request, :amounts,
    :realised, :mark
);

-- name: rewrite_request
UPDATE charge
SET request = :request, mark = :mark
WHERE id = :id;

-- name: update_charge
UPDATE charge
SET state = :state, amounts = :amounts, realised = :realised, mark = :mark
WHERE id = :id;

-- name: insert_charge_dataset
INSERT INTO charge_dataset (dataset, reserve_number, charge, end_number, flow, step)
VALUES (:dataset, :reserve_number, :charge, :end_number, :flow, :step);

-- name: end_charge_dataset
UPDATE charge_dataset SET end_number = :end_number
WHERE dataset = :dataset AND reserve_number = :reserve_number;

-- name: put_release
INSERT INTO release (
    key, key_text, dataset, step, charge, state, digest, arguments, shape, value
) VALUES (
    :key, :key_text, :dataset, :step, :charge, :state, :digest, :arguments, :shape, :value
)
ON CONFLICT (key) DO UPDATE SET key_text = excluded.key_text,
    dataset = excluded.dataset, step = excluded.step, charge = excluded.charge,
    state = excluded.state, digest = excluded.digest, arguments = excluded.arguments,
    shape = excluded.shape, value = excluded.value;

-- name: put_run
INSERT INTO run (id, dataset, flow, refusals, halted, completed)
VALUES (:id, :dataset, :flow, :refusals, :halted, :completed)
ON CONFLICT (id, dataset) DO UPDATE SET refusals = excluded.refusals,
    halted = excluded.halted, completed = excluded.completed;

-- A flow run whose function returned, in each dataset that it charged.
-- name: complete_run
INSERT INTO run (id, dataset, flow, refusals, halted, completed)
SELECT DISTINCT charge.run, part.dataset, charge.flow, 0, NULL, 1
FROM charge JOIN charge_dataset AS part ON part.charge = charge.id
WHERE charge.run = :id
ON CONFLICT (id, dataset) DO UPDATE SET completed = 1;

-- name: insert_evidence
INSERT INTO evidence (dataset, term, digest, number)
VALUES (:dataset, :term, :digest, :number);

-- name: put_people_store
INSERT INTO people_store (account, first, newest) VALUES (:account, :first, :newest)
ON CONFLICT (account) DO UPDATE SET newest = excluded.newest;

-- name: read_newest_decisions
SELECT journal.dataset, journal.number, journal.hash
FROM journal JOIN (
    SELECT dataset, max(number) AS number FROM journal
    WHERE kind IN ('open', 'tighten', 'access', 'freeze', 'unfreeze')
    GROUP BY dataset
) AS decided ON decided.dataset = journal.dataset AND decided.number = journal.number;

-- name: read_newest_hashes
SELECT journal.dataset, journal.number, journal.hash
FROM journal JOIN dataset ON dataset.name = journal.dataset
WHERE journal.number > dataset.number - 1000
    OR journal.number / 100 * 100 = journal.number;

-- name: read_ledger
SELECT id, version, environment, created_at, complete, moving_to, moved_to
FROM ledger;

-- name: read_datasets
SELECT name, term, revision, frozen, epoch, repaired_at, number, hash, mark
FROM dataset
WHERE name IN (SELECT value FROM json_each(:names))
ORDER BY name;

-- name: read_terms
SELECT dataset, number, revision, body
FROM term
WHERE dataset IN (SELECT value FROM json_each(:datasets))
ORDER BY dataset, number;

-- name: read_accounts
SELECT id, settled, held, version, alerted, overdrawn, mark
FROM account
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: read_charges
SELECT id, state, owner, login, step, flow, run, release_key, request, amounts, realised,
    mark
FROM charge
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: read_runs
SELECT id, dataset, flow, refusals, halted, completed
FROM run
WHERE id IN (SELECT value FROM json_each(:ids))
    AND dataset IN (SELECT value FROM json_each(:datasets));

-- name: find_command
SELECT dataset, number, at, writer, kind, command, charge, step, flow, run, postings, body,
    hash
FROM journal
WHERE dataset IN (SELECT value FROM json_each(:datasets)) AND command = :command
    AND kind NOT IN ('reserve', 'settle', 'void', 'forfeit')
ORDER BY dataset, number;
