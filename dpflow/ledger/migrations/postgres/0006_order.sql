-- The order of all entries over all accounts, which no clock decides; checkpoints that
-- name those before them.
ALTER TABLE dpflow.entry ADD COLUMN position bigint GENERATED ALWAYS AS IDENTITY;

-- NULL in checkpoints that were signed before; those after it go on counting.
ALTER TABLE dpflow.checkpoint ADD COLUMN number bigint CHECK (number >= 1);

UPDATE dpflow.ledger SET schema_version = 6, min_writer = 6;
