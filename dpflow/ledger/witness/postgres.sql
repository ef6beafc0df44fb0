-- The statements of a witness in a PostgreSQL database. Rows are only added.

-- name: schema
CREATE SCHEMA IF NOT EXISTS dpflow_witness;
-- Number 0 of an epoch is its header; each repair of the ledger begins an epoch.
CREATE TABLE IF NOT EXISTS dpflow_witness.line (
    ledger text NOT NULL,
    epoch bigint NOT NULL CHECK (epoch >= 0),
    number bigint NOT NULL CHECK (number >= 0),
    content text NOT NULL,
    PRIMARY KEY (ledger, epoch, number)
);
-- A header and fewer lines in place of an epoch's lines up to a number.
CREATE TABLE IF NOT EXISTS dpflow_witness.summary (
    LIKE dpflow_witness.line INCLUDING ALL
);
-- The ledger that governs a data source: the first that asked.
CREATE TABLE IF NOT EXISTS dpflow_witness.source (
    name text PRIMARY KEY,
    ledger text NOT NULL
);
CREATE OR REPLACE FUNCTION dpflow_witness.refuse() RETURNS trigger
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a witness is append-only'; END $$;
CREATE OR REPLACE TRIGGER stays BEFORE UPDATE OR DELETE OR TRUNCATE
    ON dpflow_witness.line EXECUTE FUNCTION dpflow_witness.refuse();
CREATE OR REPLACE TRIGGER stays BEFORE UPDATE OR DELETE OR TRUNCATE
    ON dpflow_witness.summary EXECUTE FUNCTION dpflow_witness.refuse();
CREATE OR REPLACE TRIGGER stays BEFORE UPDATE OR DELETE OR TRUNCATE
    ON dpflow_witness.source EXECUTE FUNCTION dpflow_witness.refuse()

-- name: has_tables
SELECT to_regclass('dpflow_witness.source') IS NOT NULL

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended(concat('dpflow_witness ', %s::text), 0))

-- name: begin
INSERT INTO dpflow_witness.line (ledger, epoch, number, content)
SELECT %(ledger)s, %(epoch)s, told.position - 1, told.content
FROM unnest(CAST(%(texts)s AS text[])) WITH ORDINALITY AS told (content, position)
WHERE NOT EXISTS (
    SELECT FROM dpflow_witness.line WHERE ledger = %(ledger)s AND epoch >= %(epoch)s
)
RETURNING number

-- name: append
INSERT INTO dpflow_witness.line (ledger, epoch, number, content)
SELECT ledger, epoch, number + told.position, told.content
FROM (
    SELECT ledger, epoch, number FROM dpflow_witness.line WHERE ledger = %(ledger)s
    ORDER BY epoch DESC, number DESC LIMIT 1
) AS newest,
unnest(CAST(%(texts)s AS text[])) WITH ORDINALITY AS told (content, position)
RETURNING epoch, number

-- name: lines
SELECT epoch, number, content FROM dpflow_witness.line
WHERE ledger = %(ledger)s AND number >= %(number)s AND epoch = (
    SELECT max(epoch) FROM dpflow_witness.line WHERE ledger = %(ledger)s
)
ORDER BY number

-- name: summary
SELECT epoch, number, content FROM dpflow_witness.summary WHERE ledger = %(ledger)s
ORDER BY epoch DESC, number DESC LIMIT 1

-- name: summarise
INSERT INTO dpflow_witness.summary (ledger, epoch, number, content)
VALUES (%(ledger)s, %(epoch)s, %(number)s, %(content)s) ON CONFLICT DO NOTHING

-- name: claim
WITH made AS (
    INSERT INTO dpflow_witness.source (name, ledger) VALUES (%(source)s, %(ledger)s)
    ON CONFLICT (name) DO NOTHING RETURNING ledger
)
SELECT ledger FROM made
UNION ALL SELECT ledger FROM dpflow_witness.source WHERE name = %(source)s
