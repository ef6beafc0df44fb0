-- Roles of a dpflow ledger on PostgreSQL. Run this script once, after `dpflow ledger
-- init`, as a role that may create roles and that made the ledger:
--
--     dpflow ledger roles --sql | psql "$DPFLOW_LEDGER_URL"
--
-- Then GRANT one of the roles to each login. A second run changes nothing.
--
--   dpflow_owner     owns the tables; not for daily use
--   dpflow_operator  opens and tightens terms, unfreezes, charges by hand
--   dpflow_worker    runs steps: reserves, settles, voids, keeps releases
--   dpflow_reader    sees accounts and journal; no released value, no secret of keys
--
-- Only the owner can delete an entry. `dpflow ledger verify` names one that does not follow
-- from those before it. Stop the flows, remove it with all behind it, N being its number,
-- and then charge what the witness knows of them with `dpflow ledger reconcile`:
--
--     BEGIN;
--     ALTER TABLE dpflow.entry DISABLE TRIGGER entry_stays;
--     ALTER TABLE dpflow.tag DISABLE TRIGGER tag_stays;
--     DELETE FROM dpflow.tag WHERE number >= N;
--     DELETE FROM dpflow.entry WHERE number >= N;
--     ALTER TABLE dpflow.entry ENABLE TRIGGER entry_stays;
--     ALTER TABLE dpflow.tag ENABLE TRIGGER tag_stays;
--     COMMIT;
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

-- Start from nothing, so that a right that is not named below is not there.
REVOKE ALL ON SCHEMA dpflow FROM PUBLIC, dpflow_operator, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL TABLES IN SCHEMA dpflow
    FROM PUBLIC, dpflow_operator, dpflow_worker, dpflow_reader;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow
    FROM PUBLIC, dpflow_operator, dpflow_worker, dpflow_reader;
GRANT USAGE ON SCHEMA dpflow TO dpflow_operator, dpflow_worker, dpflow_reader;

-- The reader: neither the values of releases nor the secret of their keys.
GRANT SELECT ON dpflow.entry, dpflow.tag
    TO dpflow_reader, dpflow_worker, dpflow_operator;
GRANT SELECT (one, ledger_id, version, created_at, environment)
    ON dpflow.ledger TO dpflow_reader;
GRANT SELECT (key) ON dpflow.kept TO dpflow_reader;

-- The worker appends entries, which triggers check and tag, and keeps or drops values.
-- Only the worker and the operator take the ledger's turn, so no reader stops a step.
GRANT SELECT ON dpflow.ledger, dpflow.kept TO dpflow_worker, dpflow_operator;
GRANT INSERT ON dpflow.entry, dpflow.kept TO dpflow_worker, dpflow_operator;
GRANT DELETE ON dpflow.kept TO dpflow_worker, dpflow_operator;
GRANT EXECUTE ON FUNCTION dpflow.take_turn() TO dpflow_worker, dpflow_operator;

-- The operator also writes entries of operators.
GRANT EXECUTE ON FUNCTION dpflow.is_operators() TO dpflow_operator;

-- The owner.
GRANT CREATE, USAGE ON SCHEMA dpflow TO dpflow_owner;
GRANT dpflow_owner TO CURRENT_USER;
ALTER TABLE dpflow.ledger OWNER TO dpflow_owner;
ALTER TABLE dpflow.entry OWNER TO dpflow_owner;
ALTER TABLE dpflow.tag OWNER TO dpflow_owner;
ALTER TABLE dpflow.kept OWNER TO dpflow_owner;
ALTER FUNCTION dpflow.refuse_change OWNER TO dpflow_owner;
ALTER FUNCTION dpflow.take_turn OWNER TO dpflow_owner;
ALTER FUNCTION dpflow.is_operators OWNER TO dpflow_owner;
ALTER FUNCTION dpflow.hash_of OWNER TO dpflow_owner;
ALTER FUNCTION dpflow.check_entry OWNER TO dpflow_owner;
ALTER FUNCTION dpflow.tag_entry OWNER TO dpflow_owner;
ALTER SCHEMA dpflow OWNER TO dpflow_owner;
COMMIT;
