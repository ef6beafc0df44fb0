-- The witnesses of ledgers, in a database that is none of theirs. Rows are only added.

CREATE SCHEMA IF NOT EXISTS dpflow_witness;

-- Number 0 of an epoch is its header; each repair of the ledger begins an epoch.
CREATE TABLE IF NOT EXISTS dpflow_witness.line (
    ledger text NOT NULL,
    epoch bigint NOT NULL CHECK (epoch >= 0),
    number bigint NOT NULL CHECK (number >= 0),
    account text NOT NULL,
    content text NOT NULL,
    PRIMARY KEY (ledger, epoch, number)
);

-- Which ledger governs a data source; the first that asked.
CREATE TABLE IF NOT EXISTS dpflow_witness.source (
    name text PRIMARY KEY,
    ledger text NOT NULL
);

CREATE OR REPLACE FUNCTION dpflow_witness.refuse() RETURNS trigger
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a witness is append-only'; END $$;

CREATE OR REPLACE TRIGGER line_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON dpflow_witness.line
    FOR EACH STATEMENT EXECUTE FUNCTION dpflow_witness.refuse();
CREATE OR REPLACE TRIGGER source_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON dpflow_witness.source
    FOR EACH STATEMENT EXECUTE FUNCTION dpflow_witness.refuse();
