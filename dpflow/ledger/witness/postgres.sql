-- The statements of a witness in a PostgreSQL database. Rows are only added.

-- name: schema
CREATE SCHEMA IF NOT EXISTS dpflow_witness;
-- A row with an epoch begins anew: a header and lines, which stand for all before it.
-- Each repair of the ledger begins an epoch; compaction repeats the newest one.
CREATE TABLE IF NOT EXISTS dpflow_witness.line (
    ledger text NOT NULL,
    number bigint NOT NULL CHECK (number >= 0),
    epoch bigint CHECK (epoch >= 0),
    content text NOT NULL,
    PRIMARY KEY (ledger, number)
);
CREATE OR REPLACE FUNCTION dpflow_witness.refuse() RETURNS trigger
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a witness is append-only'; END $$;
CREATE OR REPLACE TRIGGER stays BEFORE UPDATE OR DELETE OR TRUNCATE
    ON dpflow_witness.line EXECUTE FUNCTION dpflow_witness.refuse()

-- name: has_table
SELECT to_regclass('dpflow_witness.line') IS NOT NULL

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended(concat('dpflow_witness ', %s::text), 0))

-- name: begin
INSERT INTO dpflow_witness.line (ledger, number, epoch, content)
SELECT %(ledger)s, coalesce(max(number), -1) + 1, %(epoch)s, %(content)s
FROM dpflow_witness.line WHERE ledger = %(ledger)s

-- name: append
INSERT INTO dpflow_witness.line (ledger, number, content)
SELECT %(ledger)s, newest + position, content
FROM (
    SELECT max(number) AS newest FROM dpflow_witness.line WHERE ledger = %(ledger)s
) AS before,
unnest(CAST(%(texts)s AS text[])) WITH ORDINALITY AS added (content, position)
WHERE newest IS NOT NULL
RETURNING number

-- name: lines
SELECT number, epoch, content FROM dpflow_witness.line
WHERE ledger = %(ledger)s AND number >= coalesce(%(number)s, (
    SELECT number FROM dpflow_witness.line
    WHERE ledger = %(ledger)s AND epoch IS NOT NULL ORDER BY number DESC LIMIT 1
))
ORDER BY number
