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

-- name: read_release_sizes
SELECT key, length(value) FROM release
WHERE key IN (SELECT value FROM json_each(:keys));

-- name: read_columns
SELECT one.name, each.name FROM sqlite_master AS one, pragma_table_info(one.name) AS each
WHERE one.type = 'table';

-- name: read_size
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size();
