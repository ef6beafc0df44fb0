-- The table of a witness in a PostgreSQL database, and its statements.

-- Heads of datasets, uses of accounts, stores of people and hashes, as JSON; the row of
-- kind "ledger" says that the witness was begun. Only hashes have numbers.
-- name: schema
CREATE SCHEMA IF NOT EXISTS dpflow_witness;
CREATE TABLE IF NOT EXISTS dpflow_witness.held (
    ledger text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (ledger, kind, name, number)
);

-- name: find_table
SELECT to_regclass('dpflow_witness.held')::text;

-- A dataset without a row has a lock, too.
-- name: lock
SELECT pg_advisory_xact_lock(
    hashtextextended(concat('dpflow_witness ', %(ledger)s::text, ' ', %(name)s::text), 0)
);

-- name: read_rows
SELECT kind, name, number, value FROM dpflow_witness.held
WHERE ledger = %(ledger)s AND kind IN ('head', 'ledger', 'people', 'use')
    AND name = ANY(%(names)s);

-- name: read_all
SELECT kind, name, number, value FROM dpflow_witness.held WHERE ledger = %(ledger)s;

-- name: put
INSERT INTO dpflow_witness.held (ledger, kind, name, number, value)
VALUES (%(ledger)s, %(kind)s, %(name)s, %(number)s, %(value)s)
ON CONFLICT (ledger, kind, name, number) DO UPDATE SET value = excluded.value;

-- Hashes behind the newest thousand numbers, but for every hundredth.
-- name: thin
DELETE FROM dpflow_witness.held
WHERE ledger = %(ledger)s AND kind = 'hash' AND name = %(name)s
    AND number BETWEEN %(number)s - 1100 AND %(number)s - 1000
    AND number %% 100 <> 0;

-- name: forget
DELETE FROM dpflow_witness.held WHERE ledger = %(ledger)s;
