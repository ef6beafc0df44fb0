-- Roles of a dpflow ledger on PostgreSQL. Run this script after `dpflow ledger init`, a
-- move or a restore, as a role that may create roles and that made the ledger:
--
--     dpflow ledger roles --sql | psql "$DPFLOW_LEDGER_URL"
--
-- Then GRANT one of the roles to each login. A second run changes nothing.
--
--   dpflow_owner     owns the tables; not for daily use
--   dpflow_operator  opens and tightens terms, unfreezes, charges by hand, repairs
--   dpflow_worker    runs steps: reserves, settles, voids, keeps releases, freezes
--   dpflow_reader    sees accounts and journals; no released value, no secret of keys
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY
        ARRAY['dpflow_owner', 'dpflow_operator', 'dpflow_worker', 'dpflow_reader']
    LOOP
        IF to_regrole(role) IS NULL THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
    END LOOP;
END
$$;

BEGIN;
SET LOCAL search_path = dpflow;

-- Start from nothing, so that a right that is not named below is not there.
REVOKE ALL ON SCHEMA dpflow FROM PUBLIC, dpflow_operator, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL TABLES IN SCHEMA dpflow
    FROM PUBLIC, dpflow_operator, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow
    FROM PUBLIC, dpflow_operator, dpflow_worker, dpflow_reader;
GRANT USAGE ON SCHEMA dpflow TO dpflow_operator, dpflow_worker, dpflow_reader;

-- The reader: neither the secret of keys, nor what was released, nor its arguments.
GRANT SELECT ON dataset, term, source, account, charge, charge_dataset, run, evidence,
    journal, people_store TO dpflow_reader, dpflow_worker, dpflow_operator;
GRANT SELECT (one, id, version, environment, created_at, complete, moving_to, moved_to)
    ON ledger TO dpflow_reader;
GRANT SELECT (key, key_text, dataset, step, charge, state, digest, shape)
    ON release TO dpflow_reader;
GRANT EXECUTE ON FUNCTION value_length(text), json_text(text, text)
    TO dpflow_reader, dpflow_worker, dpflow_operator;

-- The worker: what a step writes. Triggers check entries, charges and values.
GRANT SELECT ON ledger, release TO dpflow_worker, dpflow_operator;
GRANT INSERT ON account, charge, charge_dataset, release, run, journal, people_store
    TO dpflow_worker, dpflow_operator;
GRANT UPDATE ON account, run, release TO dpflow_worker, dpflow_operator;
GRANT UPDATE (number, hash, mark) ON dataset TO dpflow_worker;
GRANT UPDATE (state, amounts, realised, mark) ON charge
    TO dpflow_worker, dpflow_operator;
GRANT UPDATE (end_number) ON charge_dataset TO dpflow_worker, dpflow_operator;
GRANT UPDATE (newest) ON people_store TO dpflow_worker, dpflow_operator;
GRANT EXECUTE ON FUNCTION freeze(text, text, bigint, text, text)
    TO dpflow_worker, dpflow_operator;

-- The operator: terms, charges by hand, and a move.
GRANT INSERT, UPDATE ON dataset, term, source TO dpflow_operator;
GRANT INSERT ON evidence TO dpflow_operator;
GRANT UPDATE (moving_to, moved_to) ON ledger TO dpflow_operator;
GRANT EXECUTE ON FUNCTION is_operators() TO dpflow_operator;

-- The owner.
GRANT CREATE, USAGE ON SCHEMA dpflow TO dpflow_owner;
GRANT dpflow_owner TO CURRENT_USER;
DO $$
DECLARE
    named text;
BEGIN
    FOR named IN SELECT oid::regclass::text FROM pg_class
        WHERE relnamespace = 'dpflow'::regnamespace AND relkind = 'r'
    LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO dpflow_owner', named);
    END LOOP;
    FOR named IN SELECT oid::regprocedure::text FROM pg_proc
        WHERE pronamespace = 'dpflow'::regnamespace
    LOOP
        EXECUTE format('ALTER FUNCTION %s OWNER TO dpflow_owner', named);
    END LOOP;
END
$$;
ALTER SCHEMA dpflow OWNER TO dpflow_owner;
COMMIT;
