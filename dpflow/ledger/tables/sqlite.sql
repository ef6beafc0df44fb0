-- Statements that SQLite has in other words than PostgreSQL.

-- name: rules
CREATE TRIGGER journal_follows BEFORE INSERT ON journal
WHEN NEW.number IS NOT (SELECT number + 1 FROM dataset WHERE name = NEW.dataset)
BEGIN SELECT RAISE(ABORT, 'the entry does not continue the journal'); END;
CREATE TRIGGER journal_stays BEFORE UPDATE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER journal_is_kept BEFORE DELETE ON journal
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
-- A value is written once, by the charge that claims its key; only a new charge of that
-- key, or a withdrawal, takes it away.
CREATE TRIGGER release_value_stays BEFORE UPDATE ON release
WHEN NOT (NEW.key = OLD.key AND CASE NEW.state
    WHEN 'claimed' THEN NEW.value IS NULL AND EXISTS (
        SELECT 1 FROM charge
        WHERE id = NEW.charge AND release_key = NEW.key AND state = 'open'
    )
    WHEN 'free' THEN NEW.value IS NULL AND OLD.state IN ('claimed', 'free')
    WHEN 'settled' THEN NEW.charge = OLD.charge AND (
        OLD.state IN ('claimed', 'free') OR OLD.state = 'settled' AND NEW.value IS OLD.value
    )
    ELSE NEW.value IS NULL AND OLD.state IN ('settled', 'withdrawn')
END)
BEGIN SELECT RAISE(ABORT, 'a released value is never replaced'); END;

-- name: freeze_dataset
UPDATE dataset
SET frozen = :frozen, number = :number, hash = :hash, mark = :mark
WHERE name = :name;

-- name: read_release_sizes
SELECT key, length(value) FROM release
WHERE key IN (SELECT value FROM json_each(:keys));

-- name: read_columns
SELECT one.name, each.name FROM sqlite_master AS one, pragma_table_info(one.name) AS each
WHERE one.type = 'table';

-- name: read_size
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size();
