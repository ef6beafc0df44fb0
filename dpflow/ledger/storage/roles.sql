-- Roles of a dpflow ledger on PostgreSQL. Run once, after `dpflow ledger init`, as a
-- role that may create roles and that made the ledger:
--
--     dpflow ledger roles --sql | psql "$DPFLOW_LEDGER_URL"
--
-- Then GRANT one of them to each login role. Running it again changes nothing.
--
--   dpflow_owner    owns the tables: `accept-server`; nobody daily
--   dpflow_officer  opens terms, freezes and thaws, posts operators' entries
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
        ARRAY['dpflow_owner', 'dpflow_officer', 'dpflow_worker', 'dpflow_reader']
    LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
    END LOOP;
END
$$;

BEGIN;

-- Start from nothing, so that a right that is not named below is not there.
REVOKE ALL ON SCHEMA dpflow FROM dpflow_officer, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL TABLES IN SCHEMA dpflow
    FROM dpflow_officer, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL TABLES IN SCHEMA dpflow FROM PUBLIC;
GRANT USAGE ON SCHEMA dpflow TO dpflow_officer, dpflow_worker, dpflow_reader;

-- The reader: neither the releases' values nor the secret of their keys.
GRANT SELECT ON dpflow.server, dpflow.book, dpflow.term, dpflow.account, dpflow.entry,
    dpflow.charge, dpflow.run, dpflow.granted, dpflow.claim
    TO dpflow_reader, dpflow_worker, dpflow_officer;
GRANT SELECT (one, ledger_id, schema_version, min_writer, epoch, created_at,
              environment)
    ON dpflow.ledger TO dpflow_reader;
GRANT SELECT (key, charge, book, state, digest, xmin) ON dpflow.release TO dpflow_reader;
GRANT EXECUTE ON FUNCTION dpflow.value_of(text)
    TO dpflow_reader, dpflow_worker, dpflow_officer;

-- The worker: appends to the journal, and moves the rows that follow from it. It opens
-- and thaws nothing: triggers look at who writes such entries and such rows of books.
GRANT SELECT ON dpflow.ledger, dpflow.release TO dpflow_worker, dpflow_officer;
GRANT INSERT ON dpflow.book, dpflow.account, dpflow.entry, dpflow.charge,
    dpflow.release, dpflow.run, dpflow.granted, dpflow.claim
    TO dpflow_worker, dpflow_officer;
GRANT UPDATE (number, hash, frozen, ran, terms) ON dpflow.book
    TO dpflow_worker, dpflow_officer;
GRANT UPDATE (entry, settled, held, overdrawn, told) ON dpflow.account
    TO dpflow_worker, dpflow_officer;
GRANT UPDATE (state, owner, places, held, added) ON dpflow.charge
    TO dpflow_worker, dpflow_officer;
GRANT UPDATE (charge, book, state, digest, value) ON dpflow.release
    TO dpflow_worker, dpflow_officer;
GRANT UPDATE (refused, halted, preflight, unheld) ON dpflow.run
    TO dpflow_worker, dpflow_officer;
GRANT UPDATE (most) ON dpflow.granted TO dpflow_worker, dpflow_officer;
GRANT UPDATE (said) ON dpflow.claim TO dpflow_worker, dpflow_officer;
-- A trigger keeps settled releases; what can be deleted is a claim.
GRANT DELETE ON dpflow.release TO dpflow_worker, dpflow_officer;
GRANT EXECUTE ON FUNCTION dpflow.changed_meanwhile() TO dpflow_worker, dpflow_officer;

-- The officer: also terms, and the count of repairs.
GRANT INSERT ON dpflow.term TO dpflow_officer;
GRANT UPDATE (entry) ON dpflow.term TO dpflow_officer;
GRANT UPDATE (epoch) ON dpflow.ledger TO dpflow_officer;

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
