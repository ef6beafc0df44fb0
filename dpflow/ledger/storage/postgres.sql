-- The rules of a ledger's tables in PostgreSQL, and its sessions.

-- name: make_schema
CREATE SCHEMA dpflow

-- name: rules
CREATE FUNCTION dpflow.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation';
END
$$;
CREATE TRIGGER entry_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON dpflow.entry
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');
CREATE TRIGGER tag_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON dpflow.tag
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');
CREATE TRIGGER kept_stays BEFORE UPDATE ON dpflow.kept
    EXECUTE FUNCTION dpflow.refuse_change('a kept value is never changed');

-- A transaction that writes has the ledger for itself from here to its end. Readers may
-- not call this function, and so no reader stops a step.
CREATE FUNCTION dpflow.take_turn() RETURNS SETOF dpflow.ledger
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT * FROM dpflow.ledger FOR UPDATE';
-- The right to call this function is the right to write entries of operators.
CREATE FUNCTION dpflow.is_operators() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS 'SELECT true';
CREATE FUNCTION dpflow.hash_of(VARIADIC texts text[]) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS 'SELECT encode(sha256(convert_to(array_to_string(texts, chr(10), ''''), ''UTF8'')), ''hex'')';

CREATE FUNCTION dpflow.check_entry() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    its dpflow.ledger;
    last bigint;
    previous text;
    wrong text;
BEGIN
    SELECT * INTO its FROM dpflow.take_turn();
    -- A statement of its own sees all that was committed before this turn.
    SELECT number, hash INTO last, previous FROM dpflow.entry ORDER BY number DESC LIMIT 1;
    previous := coalesce(previous, dpflow.hash_of(
        its.ledger_id, its.version::text, its.created_at, its.environment));
    wrong := CASE
        WHEN NEW.number <> coalesce(last, 0) + 1 OR NEW.hash <> dpflow.hash_of(
            previous, NEW.number::text, NEW.kind, NEW.charge, NEW.at, NEW.writer,
            NEW.rows, NEW.body
        ) THEN 'write an entry that does not continue the journal'
        WHEN NEW.writer <> session_user THEN 'write an entry under another name'
        WHEN NEW.kind IN ('settle', 'void') AND NOT EXISTS (
            SELECT FROM dpflow.entry
            WHERE charge = NEW.charge AND kind = 'reserve' AND writer = session_user
        ) THEN 'settle or void the charge of another login'
        WHEN NEW.kind IN ({operator}) AND NOT has_function_privilege(
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
CREATE TRIGGER entry_is_checked BEFORE INSERT ON dpflow.entry FOR EACH ROW
    EXECUTE FUNCTION dpflow.check_entry();

-- After the insert: `ON CONFLICT DO NOTHING` would leave tags of an entry that is not
-- there.
CREATE FUNCTION dpflow.tag_entry() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO dpflow.tag SELECT key, NEW.number
    FROM json_object_keys(CAST(NEW.rows AS json)) AS key;
    RETURN NULL;
END
$$;
CREATE TRIGGER entry_is_tagged AFTER INSERT ON dpflow.entry FOR EACH ROW
    EXECUTE FUNCTION dpflow.tag_entry();
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow FROM PUBLIC;

-- name: prepare_connection
-- Every statement looks rows up by their keys: no plan may read a whole table because
-- it was small when it was made.
SELECT set_config('search_path', 'dpflow, pg_temp', false),
    set_config('lock_timeout', %(lock_timeout)s, false),
    set_config('statement_timeout', %(statement_timeout)s, false),
    set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, false),
    set_config('idle_session_timeout', '0', false),
    set_config('tcp_keepalives_idle', '30', false),
    set_config('tcp_keepalives_interval', '10', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('default_transaction_read_only', 'off', false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('enable_seqscan', 'off', false),
    set_config('enable_hashjoin', 'off', false),
    set_config('enable_mergejoin', 'off', false),
    set_config('jit', 'off', false),
    (SELECT CAST(system_identifier AS text) FROM pg_control_system())
        AS system_identifier,
    pg_backend_pid() AS pid,
    current_setting('server_encoding') AS server_encoding,
    session_user AS login,
    coalesce(has_column_privilege(to_regclass('dpflow.kept'), 'value', 'SELECT'), false)
        AS shows_values

-- name: durable
SELECT current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes'), pg_is_in_recovery()

-- name: take_owner
SELECT pg_advisory_lock_shared(%(key)s)

-- Only a login that may charge holds a name: any session may take such a lock.
-- name: owner_alive
SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND CAST(classid AS bigint) << 32 | CAST(objid AS bigint) = %(key)s
    AND EXISTS (
        SELECT FROM pg_roles
        WHERE pg_has_role(usesysid, pg_roles.oid, 'MEMBER')
            AND coalesce(has_table_privilege(
                pg_roles.oid, to_regclass('dpflow.entry'), 'INSERT'), true)
    )
