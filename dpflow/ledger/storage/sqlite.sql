-- The rules of a ledger's tables in SQLite.

-- name: rules
CREATE TRIGGER entry_is_tagged AFTER INSERT ON entry
BEGIN INSERT INTO tag SELECT json_each.key, NEW.number FROM json_each(NEW.rows); END;
CREATE TRIGGER entry_is_kept BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_stays BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER tag_is_kept BEFORE DELETE ON tag
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER tag_stays BEFORE UPDATE ON tag
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER kept_stays BEFORE UPDATE ON kept
BEGIN SELECT RAISE(ABORT, 'a kept value is never changed'); END;
