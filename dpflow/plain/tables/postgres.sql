-- Statements that PostgreSQL has in other words than SQLite.

-- name: make_schema
CREATE SCHEMA dpflow;
SET LOCAL search_path = dpflow;

-- name: rules
ALTER TABLE dataset SET (fillfactor = 50);
ALTER TABLE account SET (fillfactor = 50);
CREATE FUNCTION dpflow.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'the journal is append-only' USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER journal_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON dpflow.journal
    EXECUTE FUNCTION dpflow.refuse_change();
-- The right to call this function is the right to write entries of operators.
CREATE FUNCTION dpflow.is_operators() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS 'SELECT true';
CREATE FUNCTION dpflow.check_entry() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
    wrong text;
BEGIN
    SELECT number INTO last FROM dpflow.dataset WHERE name = NEW.dataset;
    wrong := CASE
        WHEN last IS NULL OR NEW.number <> last + 1
            THEN 'write an entry that does not continue the journal'
        WHEN NEW.writer <> session_user THEN 'write an entry under another name'
        WHEN NEW.kind IN (
            'forfeit', 'open', 'tighten', 'access', 'unfreeze', 'adjust', 'repair',
            'upgrade'
        ) AND NOT has_function_privilege(
            session_user, 'dpflow.is_operators()', 'EXECUTE'
        ) THEN format('write an entry of kind %s, which is an operator''s', NEW.kind)
    END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'the login % may not %', session_user, wrong
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER journal_follows BEFORE INSERT ON dpflow.journal FOR EACH ROW
    EXECUTE FUNCTION dpflow.check_entry();
CREATE FUNCTION dpflow.check_end() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.state = 'open' AND NEW.state IN ('settled', 'void')
        AND OLD.login IS DISTINCT FROM session_user::text
    THEN
        RAISE EXCEPTION 'the login % may not end the charge of another login',
            session_user USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER charge_is_ended BEFORE UPDATE OF state ON dpflow.charge FOR EACH ROW
    EXECUTE FUNCTION dpflow.check_end();
CREATE FUNCTION dpflow.check_value() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.value IS NOT NULL AND NEW.value IS DISTINCT FROM OLD.value
        AND (NEW.value IS NOT NULL OR NEW.state NOT IN ('withdrawn', 'claimed'))
    THEN
        RAISE EXCEPTION 'a released value is never replaced'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER release_value_stays BEFORE UPDATE OF value ON dpflow.release
    FOR EACH ROW EXECUTE FUNCTION dpflow.check_value();
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow FROM PUBLIC;

-- Settings of the session and state of the tables by which a commit lasts.
-- name: read_durability
SELECT current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes'), pg_is_in_recovery(),
    current_setting('session_replication_role'),
    (SELECT count(*) FROM pg_trigger
        WHERE tgrelid IN ('dpflow.journal'::regclass, 'dpflow.charge'::regclass,
            'dpflow.release'::regclass)
            AND NOT tgisinternal AND tgenabled IN ('O', 'A')),
    (SELECT count(*) FROM pg_class
        WHERE oid IN ('dpflow.journal'::regclass, 'dpflow.charge'::regclass,
            'dpflow.release'::regclass, 'dpflow.dataset'::regclass,
            'dpflow.account'::regclass, 'dpflow.charge_dataset'::regclass,
            'dpflow.term'::regclass, 'dpflow.run'::regclass,
            'dpflow.evidence'::regclass, 'dpflow.source'::regclass,
            'dpflow.people_store'::regclass, 'dpflow.ledger'::regclass)
            AND (relpersistence <> 'p' OR relrowsecurity));

-- Locks in the order of names, so that two steps never wait for each other.
-- name: lock_datasets
SELECT name, term, revision, frozen, epoch, repaired_at, number, hash, mark
FROM dataset
WHERE name = ANY(:names)
ORDER BY name
FOR UPDATE;

-- name: lock_all
LOCK TABLE dataset IN EXCLUSIVE MODE;

-- name: read_ledger
SELECT id, version, environment, created_at, complete, moving_to, moved_to
FROM ledger;

-- name: read_datasets
SELECT name, term, revision, frozen, epoch, repaired_at, number, hash, mark
FROM dataset
WHERE name = ANY(:names)
ORDER BY name;

-- name: read_terms
SELECT dataset, number, revision, body
FROM term
WHERE dataset = ANY(:datasets)
ORDER BY dataset, number;

-- name: read_accounts
SELECT id, settled, held, version, alerted, overdrawn, mark
FROM account
WHERE id = ANY(:ids);

-- name: read_charges
SELECT id, state, owner, login, step, flow, run, release_key, request, amounts, realised,
    mark
FROM charge
WHERE id = ANY(:ids);

-- name: read_runs
SELECT id, dataset, flow, refusals, halted, completed
FROM run
WHERE id = ANY(:ids)
    AND dataset = ANY(:datasets);

-- name: read_people_stores
SELECT account, first, newest
FROM people_store
WHERE account = ANY(:accounts);

-- name: find_command
SELECT dataset, number, at, writer, kind, command, charge, step, flow, run, postings, body,
    hash
FROM journal
WHERE dataset = ANY(:datasets) AND command = :command
    AND kind NOT IN ('reserve', 'settle', 'void', 'forfeit')
ORDER BY dataset, number;
