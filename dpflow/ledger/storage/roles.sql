-- Roles of a dpflow ledger on PostgreSQL. Run once, after `dpflow ledger init`, as a
-- role that may create roles and that made the ledger:
--
--     dpflow ledger roles --sql | psql "$DPFLOW_LEDGER_URL"
--
-- Then GRANT one of them to each login role. Running it again changes nothing.
--
--   dpflow_owner    owns the tables; not for daily use
--   dpflow_operator  opens terms, freezes and unfreezes, posts operators' entries
--   dpflow_worker   runs steps: reserves, settles, voids, keeps releases
--   dpflow_reader   sees accounts and journal; no released value, no key secret
--
-- Nobody but the owner can change or delete a journal row, and triggers stop even the
-- owner until they are dropped.

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY
        ARRAY['dpflow_owner', 'dpflow_operator', 'dpflow_worker', 'dpflow_reader']
    LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
    END LOOP;
END
$$;

BEGIN;

-- Start from nothing, so that a right that is not named below is not there.
REVOKE ALL ON SCHEMA dpflow FROM dpflow_operator, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL TABLES IN SCHEMA dpflow
    FROM dpflow_operator, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow
    FROM dpflow_operator, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL TABLES IN SCHEMA dpflow FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow FROM PUBLIC;
GRANT USAGE ON SCHEMA dpflow TO dpflow_operator, dpflow_worker, dpflow_reader;

-- The reader: neither the releases' outputs nor the secret of their keys.
GRANT SELECT ON dpflow.entry
    TO dpflow_reader, dpflow_worker, dpflow_operator;
GRANT SELECT (one, ledger_id, schema_version, min_writer, created_at, environment)
    ON dpflow.ledger TO dpflow_reader;
GRANT SELECT (key, value, open) ON dpflow.row TO dpflow_reader;

-- The worker: appends to the journal, and moves the rows that follow from it. Triggers
-- keep it from opening and unfreezing, and from what would go back; what can be deleted is
-- the claim of a release. Only it and the operator take the ledger's turn, so that no reader
-- stops a step.
GRANT SELECT ON dpflow.ledger, dpflow.row TO dpflow_worker, dpflow_operator;
GRANT INSERT ON dpflow.entry, dpflow.row TO dpflow_worker, dpflow_operator;
GRANT UPDATE (value, output), DELETE ON dpflow.row TO dpflow_worker, dpflow_operator;
GRANT EXECUTE ON FUNCTION dpflow.take_turn() TO dpflow_worker, dpflow_operator;

-- The operator: also terms, what unfreezes a book, and the count of repairs.
GRANT EXECUTE ON FUNCTION dpflow.is_operators() TO dpflow_operator;

-- The owner.
GRANT CREATE, USAGE ON SCHEMA dpflow TO dpflow_owner;
DO $$
DECLARE
    found record;
BEGIN
    EXECUTE format('GRANT dpflow_owner TO %I', current_user);
    FOR found IN
        SELECT c.relname FROM pg_class c
        WHERE c.relnamespace = 'dpflow'::regnamespace AND c.relkind = 'r'
    LOOP
        EXECUTE format('ALTER TABLE dpflow.%I OWNER TO dpflow_owner', found.relname);
    END LOOP;
    FOR found IN
        SELECT p.oid::regprocedure::text AS name FROM pg_proc p
        WHERE p.pronamespace = 'dpflow'::regnamespace
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO dpflow_owner', found.name);
    END LOOP;
    EXECUTE 'ALTER SCHEMA dpflow OWNER TO dpflow_owner';
END
$$;

COMMIT;
