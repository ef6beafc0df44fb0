-- The order of all entries over all accounts, which no clock decides; checkpoints that
-- name those before them.

CREATE TABLE entry_order (
    position INTEGER PRIMARY KEY,
    account TEXT NOT NULL,
    seq INTEGER NOT NULL,
    UNIQUE (account, seq)
) STRICT;

-- What is there already is put in the order in which it was listed so far.
INSERT INTO entry_order (account, seq)
SELECT account, seq FROM (
    SELECT account, seq, max(at) OVER (PARTITION BY account ORDER BY seq) AS since
    FROM entry)
ORDER BY since, account, seq;

CREATE TRIGGER entry_ordered AFTER INSERT ON entry
BEGIN INSERT OR REPLACE INTO entry_order (account, seq) VALUES (NEW.account, NEW.seq);
END;

-- NULL in checkpoints that were signed before; those after it go on counting.
ALTER TABLE checkpoint ADD COLUMN number INTEGER CHECK (number >= 1);

UPDATE ledger SET schema_version = 6, min_writer = 6;
