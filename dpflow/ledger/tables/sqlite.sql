-- Statements that SQLite has in other words than PostgreSQL.

-- name: rules
CREATE TRIGGER journal_follows BEFORE INSERT ON journal
WHEN NEW.number IS NOT (SELECT number + 1 FROM dataset WHERE name = NEW.dataset)
BEGIN SELECT RAISE(ABORT, 'the entry does not continue the journal'); END;
CREATE TRIGGER journal_stays BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_is_kept BEFORE DELETE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER release_value_stays BEFORE UPDATE OF value ON release
WHEN NEW.value IS NOT OLD.value AND NOT (
    OLD.value IS NULL AND OLD.state IN ('claimed', 'free')
    OR NEW.value IS NULL AND NEW.state IN ('withdrawn', 'claimed')
)
BEGIN SELECT RAISE(ABORT, 'a released value is never replaced'); END;

-- name: freeze_dataset
UPDATE dataset
SET frozen = :frozen, number = :number, hash = :hash, mark = :mark
WHERE name = :name;

-- The lock of the file is the lock of all datasets.
-- name: wait_shortly
SELECT 1;

-- name: stop_steps
SELECT 1;

-- name: lock_all
SELECT 1;

-- name: lock_datasets
SELECT name, term, revision, frozen, epoch, repaired_at, number, hash, mark
FROM dataset
WHERE name IN (SELECT value FROM json_each(:names))
ORDER BY name;

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

-- name: read_people_stores
SELECT account, first, newest
FROM people_store
WHERE account IN (SELECT value FROM json_each(:accounts));

-- name: find_command
SELECT dataset, number, at, writer, kind, command, charge, step, flow, run, postings, body,
    hash
FROM journal
WHERE dataset IN (SELECT value FROM json_each(:datasets)) AND command = :command
    AND kind NOT IN ('reserve', 'settle', 'void', 'forfeit')
ORDER BY dataset, number;

-- name: read_columns
SELECT one.name, each.name FROM sqlite_master AS one, pragma_table_info(one.name) AS each
WHERE one.type = 'table';

-- name: read_size
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size();
