-- Every statement of a witness in a PostgreSQL database that is none of a ledger's.
-- Rows are only added.

-- name: schema
CREATE SCHEMA IF NOT EXISTS dpflow_witness;

-- Number 0 of an epoch is its header; each repair of the ledger begins an epoch.
CREATE TABLE IF NOT EXISTS dpflow_witness.line (
    ledger text NOT NULL,
    epoch bigint NOT NULL CHECK (epoch >= 0),
    number bigint NOT NULL CHECK (number >= 0),
    book text NOT NULL,
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

-- name: exists
SELECT to_regclass('dpflow_witness.line') IS NOT NULL
   AND to_regclass('dpflow_witness.source') IS NOT NULL;

-- name: lock
SELECT current_setting('synchronous_commit'), current_setting('fsync'),
       current_setting('full_page_writes'), pg_is_in_recovery(),
       pg_advisory_xact_lock(
           hashtextextended('dpflow_witness ' || CAST(%(name)s AS text), 0));

-- name: begin
INSERT INTO dpflow_witness.line (ledger, epoch, number, book, content)
SELECT %(ledger)s, %(epoch)s, told.position - 1, told.book, told.content
FROM unnest(CAST(%(books)s AS text[]), CAST(%(texts)s AS text[]))
    WITH ORDINALITY AS told (book, content, position)
WHERE NOT EXISTS (SELECT 1 FROM dpflow_witness.line AS known
                  WHERE known.ledger = %(ledger)s AND known.epoch >= %(epoch)s);

-- name: append
INSERT INTO dpflow_witness.line (ledger, epoch, number, book, content)
SELECT %(ledger)s, newest.epoch, newest.number + told.position, told.book, told.content
FROM (SELECT known.epoch, known.number FROM dpflow_witness.line AS known
      WHERE known.ledger = %(ledger)s
      ORDER BY known.epoch DESC, known.number DESC LIMIT 1) AS newest,
     unnest(CAST(%(books)s AS text[]), CAST(%(texts)s AS text[]))
         WITH ORDINALITY AS told (book, content, position)
RETURNING epoch, number;

-- name: read
WITH newest AS (
    SELECT max(known.epoch) AS epoch FROM dpflow_witness.line AS known
    WHERE known.ledger = %(ledger)s
)
SELECT line.epoch, line.number, line.content
FROM dpflow_witness.line AS line JOIN newest ON line.epoch = newest.epoch
WHERE line.ledger = %(ledger)s
  AND (line.number = 0
       OR line.number > CASE WHEN newest.epoch = %(epoch)s THEN %(above)s ELSE 0 END)
ORDER BY line.number;

-- name: claim_source
INSERT INTO dpflow_witness.source (name, ledger) VALUES (%(source)s, %(ledger)s)
ON CONFLICT (name) DO NOTHING;

-- name: read_source
SELECT ledger FROM dpflow_witness.source WHERE name = %(source)s;
