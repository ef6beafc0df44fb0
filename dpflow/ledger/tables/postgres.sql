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
-- A charge is made and ended by its own login; all else is an operator's.
CREATE FUNCTION dpflow.check_charge() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        wrong := CASE
            WHEN NEW.login IS DISTINCT FROM session_user::text
                THEN 'reserve under another name'
            WHEN NEW.state <> 'open' THEN 'write a charge that has ended'
        END;
    ELSIF NEW.state <> OLD.state THEN
        wrong := CASE
            WHEN OLD.state <> 'open' THEN 'end a charge again'
            WHEN NEW.state = 'forfeited' AND NOT has_function_privilege(
                session_user, 'dpflow.is_operators()', 'EXECUTE'
            ) THEN 'forfeit a charge, which is an operator''s'
            WHEN NEW.state <> 'forfeited' AND OLD.login IS DISTINCT FROM session_user::text
                THEN 'end the charge of another login'
        END;
    ELSIF NOT has_function_privilege(session_user, 'dpflow.is_operators()', 'EXECUTE') THEN
        wrong := 'correct a charge, which is an operator''s';
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'the login % may not %', session_user, wrong
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER charge_is_own BEFORE INSERT OR UPDATE ON dpflow.charge FOR EACH ROW
    EXECUTE FUNCTION dpflow.check_charge();
-- A value is written once, by the charge that claims its key; only a new charge of that
-- key, or a withdrawal, takes it away.
CREATE FUNCTION dpflow.check_value() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT (NEW.key = OLD.key AND CASE NEW.state
        WHEN 'claimed' THEN NEW.value IS NULL AND EXISTS (
            SELECT 1 FROM dpflow.charge
            WHERE id = NEW.charge AND release_key = NEW.key AND state = 'open'
        )
        WHEN 'free' THEN NEW.value IS NULL AND OLD.state IN ('claimed', 'free')
        WHEN 'settled' THEN NEW.charge = OLD.charge AND (
            OLD.state IN ('claimed', 'free')
            OR OLD.state = 'settled' AND NEW.value IS NOT DISTINCT FROM OLD.value
        )
        ELSE NEW.value IS NULL AND OLD.state IN ('settled', 'withdrawn')
    END) THEN
        RAISE EXCEPTION 'a released value is never replaced'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER release_value_stays BEFORE UPDATE ON dpflow.release
    FOR EACH ROW EXECUTE FUNCTION dpflow.check_value();
-- Who may freeze but not unfreeze writes the row by this function.
CREATE FUNCTION dpflow.freeze(
    which text, why text, entry bigint, entry_hash text, row_mark text
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE dpflow.dataset
    SET frozen = why, number = entry, hash = entry_hash, mark = row_mark
    WHERE name = which AND frozen IS NULL AND why IS NOT NULL;
END
$$;
-- A field of a document. PostgreSQL reads no document with a NUL or half of a pair.
CREATE FUNCTION dpflow.json_text(document text, field text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN document ~ '\\u(0000|d[89a-f])'
        THEN regexp_replace(document, '\\u(0000|d[89a-f]..)', '\\ufffd', 'g')
        ELSE document END::json ->> field
$$;
-- How long a released value is; a reader may know no more of it.
CREATE FUNCTION dpflow.value_length(which text) RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT length(value) FROM dpflow.release WHERE key = which
$$;
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
        WHERE oid = ANY('{dpflow.journal, dpflow.charge, dpflow.release, dpflow.dataset,
                dpflow.account, dpflow.charge_dataset, dpflow.term, dpflow.run,
                dpflow.evidence, dpflow.source, dpflow.people_store, dpflow.ledger
            }'::regclass[])
            AND (relpersistence <> 'p' OR relrowsecurity));

-- Those who wait stand in line at a row that does not change, that of the oldest charge:
-- one that changes wakes all of them, in no order.
-- name: queue_for_datasets
SELECT FROM unnest(CAST(:names AS text[])) AS named (name)
CROSS JOIN LATERAL (
    SELECT charge FROM charge_dataset
    WHERE dataset = named.name
    ORDER BY reserve_number
    LIMIT 1
    FOR UPDATE
) AS oldest;

-- Locks in the order of names, so that two steps never wait for each other.
-- name: lock_datasets
SELECT {dataset} FROM dataset
WHERE name = ANY(:names)
ORDER BY name
FOR UPDATE;

-- name: freeze_dataset
SELECT dpflow.freeze(:name, :frozen, :number, :hash, :mark);

-- Who waits for a lock of a whole table stops all who come later.
-- name: wait_shortly
SELECT set_config('lock_timeout', '2s', true);

-- A step comes to the first three in this order.
-- name: stop_steps
LOCK TABLE charge_dataset, dataset, ledger, term, source, account, charge, release, run,
    evidence, journal, people_store IN ACCESS EXCLUSIVE MODE;

-- name: lock_all
LOCK TABLE dataset IN EXCLUSIVE MODE;

-- A reader may not read the value.
-- name: read_release_sizes
SELECT key, dpflow.value_length(key) FROM release
WHERE key = ANY(:keys);

-- name: read_columns
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = 'dpflow';

-- name: read_size
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = 'dpflow'::regnamespace AND relkind = 'r';
