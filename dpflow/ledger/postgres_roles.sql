-- Roles of a dpflow ledger on PostgreSQL. Run once, after `dpflow ledger init`, as a
-- role that may create roles and that made the ledger:
--
--     dpflow ledger roles --sql | psql "$DPFLOW_LEDGER_URL"
--
-- Then GRANT one of them to each login role. Running it again changes nothing.
--
--   dpflow_owner    owns the tables: migrations and `accept-server`; nobody daily
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
GRANT SELECT ON dpflow.server, dpflow.term, dpflow.account, dpflow.entry,
    dpflow.reservation, dpflow.refused, dpflow.granted, dpflow.checkpoint,
    dpflow.alert, dpflow.preflight
    TO dpflow_reader, dpflow_worker, dpflow_officer;
GRANT SELECT (one, ledger_id, schema_version, min_writer, epoch, created_at,
              environment)
    ON dpflow.ledger TO dpflow_reader;
GRANT SELECT (release_key, key_text, dataset, step, cost, reservation, owner, state,
              digest, at)
    ON dpflow.release TO dpflow_reader;

-- The worker: appends to the journal, moves sums, ends charges. It sets no budget:
-- neither terms nor an account's rule or halt are its to change.
GRANT SELECT ON dpflow.ledger, dpflow.release, dpflow.lockable
    TO dpflow_worker, dpflow_officer;
GRANT INSERT ON dpflow.account, dpflow.entry, dpflow.reservation, dpflow.refused,
    dpflow.granted, dpflow.release, dpflow.alert, dpflow.preflight
    TO dpflow_worker, dpflow_officer;
GRANT INSERT (name), UPDATE (turn) ON dpflow.lockable TO dpflow_worker, dpflow_officer;
GRANT UPDATE (settled, held, seq, head, state) ON dpflow.account
    TO dpflow_worker, dpflow_officer;
GRANT UPDATE (state) ON dpflow.reservation TO dpflow_worker, dpflow_officer;
-- Whoever runs a flow run again takes its preflight over.
GRANT UPDATE (owner) ON dpflow.preflight TO dpflow_worker, dpflow_officer;
GRANT UPDATE (amount) ON dpflow.granted TO dpflow_worker, dpflow_officer;
GRANT UPDATE (cost, reservation, owner, state, value, digest, at) ON dpflow.release
    TO dpflow_worker, dpflow_officer;
-- A trigger keeps settled releases; what can be deleted is a claim.
GRANT DELETE ON dpflow.release TO dpflow_worker, dpflow_officer;

-- The officer: also terms, the numbers of an account that is tightened, checkpoints.
GRANT INSERT ON dpflow.term, dpflow.checkpoint TO dpflow_officer;
GRANT UPDATE (pinned, declared, policy_hash) ON dpflow.term TO dpflow_officer;
GRANT UPDATE (rule, halt) ON dpflow.account TO dpflow_officer;
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
