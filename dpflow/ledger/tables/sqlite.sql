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

-- Ended charges of a dataset that posted the same, with their number and newest time.
-- name: read_ends
SELECT part.step, part.flow, ended.kind, ended.postings, substr(ended.at, 1, 10),
    json_extract(ended.body, '$.outcome'),
    coalesce(json_extract(ended.body, '$.error'), json_extract(ended.body, '$.error_type')),
    json_extract(ended.body, '$.noise'),
    CASE WHEN :release = 1 THEN json_extract(charge.request, '$.key_text') END,
    CASE WHEN :who = 1 THEN coalesce(
        json_extract(ended.body, '$.who'), json_extract(charge.request, '$.who'), made.writer
    ) END,
    CASE WHEN :cost = 1 THEN json_extract(charge.request, '$.cost') END,
    count(*), max(ended.at)
FROM charge_dataset AS part
JOIN charge ON charge.id = part.charge
JOIN journal AS made
    ON made.dataset = part.dataset AND made.number = part.reserve_number
JOIN journal AS ended
    ON ended.dataset = part.dataset AND ended.number = part.end_number
WHERE part.dataset = :dataset AND part.reserve_number > :after
    AND part.reserve_number < :before
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11;
