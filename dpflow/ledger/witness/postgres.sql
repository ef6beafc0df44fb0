-- Tables and statements of a witness in a PostgreSQL database.

-- name: schema
CREATE SCHEMA IF NOT EXISTS dpflow_witness;
CREATE TABLE IF NOT EXISTS dpflow_witness.ledger (ledger text PRIMARY KEY);
CREATE TABLE IF NOT EXISTS dpflow_witness.head (
    ledger text NOT NULL,
    dataset text NOT NULL,
    epoch bigint NOT NULL,
    number bigint NOT NULL,
    hash text NOT NULL,
    forked boolean NOT NULL,
    term bigint NOT NULL,
    decided_number bigint NOT NULL,
    decided_hash text NOT NULL,
    PRIMARY KEY (ledger, dataset)
);
CREATE TABLE IF NOT EXISTS dpflow_witness.use (
    ledger text NOT NULL,
    account text NOT NULL,
    epoch bigint NOT NULL,
    version bigint NOT NULL,
    used text NOT NULL,
    PRIMARY KEY (ledger, account)
);
CREATE TABLE IF NOT EXISTS dpflow_witness.people (
    ledger text NOT NULL,
    account text NOT NULL,
    number bigint NOT NULL,
    newest text NOT NULL,
    PRIMARY KEY (ledger, account)
);
CREATE TABLE IF NOT EXISTS dpflow_witness.hash (
    ledger text NOT NULL,
    dataset text NOT NULL,
    number bigint NOT NULL,
    hash text NOT NULL,
    PRIMARY KEY (ledger, dataset, number)
);

-- name: has_table
SELECT to_regclass('dpflow_witness.ledger') IS NOT NULL;

-- name: read_ledger
SELECT ledger FROM dpflow_witness.ledger WHERE ledger = %(ledger)s;

-- name: begin_ledger
INSERT INTO dpflow_witness.ledger (ledger) VALUES (%(ledger)s) ON CONFLICT DO NOTHING;

-- name: lock_ledger
SELECT pg_advisory_xact_lock(hashtextextended(concat('dpflow_witness ', %(ledger)s::text), 0));

-- name: read_heads
SELECT dataset, epoch, number, hash, forked, term, decided_number, decided_hash
FROM dpflow_witness.head
WHERE ledger = %(ledger)s AND dataset = ANY(%(datasets)s);

-- name: lock_heads
SELECT dataset, epoch, number, hash, forked, term, decided_number, decided_hash
FROM dpflow_witness.head
WHERE ledger = %(ledger)s AND dataset = ANY(%(datasets)s)
ORDER BY dataset
FOR UPDATE;

-- name: read_uses
SELECT account, epoch, version, used FROM dpflow_witness.use
WHERE ledger = %(ledger)s AND account = ANY(%(accounts)s);

-- name: read_all_heads
SELECT dataset, epoch, number, hash, forked, term, decided_number, decided_hash
FROM dpflow_witness.head WHERE ledger = %(ledger)s;

-- name: read_all_uses
SELECT account, epoch, version, used FROM dpflow_witness.use WHERE ledger = %(ledger)s;

-- name: read_all_people
SELECT account, number, newest FROM dpflow_witness.people WHERE ledger = %(ledger)s;

-- name: read_all_hashes
SELECT dataset, number, hash FROM dpflow_witness.hash WHERE ledger = %(ledger)s;

-- name: put_head
INSERT INTO dpflow_witness.head (
    ledger, dataset, epoch, number, hash, forked, term, decided_number, decided_hash
) VALUES (
    %(ledger)s, %(dataset)s, %(epoch)s, %(number)s, %(hash)s, %(forked)s, %(term)s,
    %(decided_number)s, %(decided_hash)s
)
ON CONFLICT (ledger, dataset) DO UPDATE SET epoch = excluded.epoch,
    number = excluded.number, hash = excluded.hash, forked = excluded.forked,
    term = excluded.term, decided_number = excluded.decided_number,
    decided_hash = excluded.decided_hash;

-- name: put_use
INSERT INTO dpflow_witness.use AS before (ledger, account, epoch, version, used)
VALUES (%(ledger)s, %(account)s, %(epoch)s, %(version)s, %(used)s)
ON CONFLICT (ledger, account) DO UPDATE SET epoch = excluded.epoch,
    version = excluded.version, used = excluded.used
WHERE (excluded.epoch, excluded.version) > (before.epoch, before.version);

-- name: put_people
INSERT INTO dpflow_witness.people AS before (ledger, account, number, newest)
VALUES (%(ledger)s, %(account)s, %(number)s, %(newest)s)
ON CONFLICT (ledger, account) DO UPDATE SET number = excluded.number,
    newest = excluded.newest
WHERE %(anew)s OR excluded.number >= before.number;

-- name: put_hash
INSERT INTO dpflow_witness.hash (ledger, dataset, number, hash)
VALUES (%(ledger)s, %(dataset)s, %(number)s, %(hash)s)
ON CONFLICT (ledger, dataset, number) DO UPDATE SET hash = excluded.hash;

-- Hashes behind the newest thousand numbers, but for every hundredth.
-- name: thin_hashes
DELETE FROM dpflow_witness.hash
WHERE ledger = %(ledger)s AND dataset = %(dataset)s
    AND number BETWEEN %(number)s - 1100 AND %(number)s - 1000
    AND number %% 100 <> 0;

-- name: forget_ledger
DELETE FROM dpflow_witness.head WHERE ledger = %(ledger)s;
DELETE FROM dpflow_witness.use WHERE ledger = %(ledger)s;
DELETE FROM dpflow_witness.people WHERE ledger = %(ledger)s;
DELETE FROM dpflow_witness.hash WHERE ledger = %(ledger)s;
