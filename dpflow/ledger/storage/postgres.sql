-- The statements of a ledger in PostgreSQL, by name, beside those of every dialect.
-- Rows are what `journal.follow` makes of the entries; only entries are never changed.

-- name: schema
-- Texts are compared byte by byte, so that no locale changes an order or an index.
CREATE SCHEMA dpflow;
REVOKE ALL ON SCHEMA dpflow FROM PUBLIC;

CREATE TABLE dpflow.ledger (
    one bigint PRIMARY KEY CHECK (one = 1),
    ledger_id text COLLATE "C" NOT NULL,
    schema_version bigint NOT NULL,
    min_writer bigint NOT NULL,
    release_secret text COLLATE "C" NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    environment text COLLATE "C"
);
-- Every row by its key, as text; beside that of a release, the output that is kept.
CREATE TABLE dpflow.row (
    key text COLLATE "C" PRIMARY KEY,
    value text COLLATE "C" NOT NULL,
    output text COLLATE "C",
    -- Open charges, and few more. Most updates leave it, and so the indexes, as it was.
    open boolean NOT NULL GENERATED ALWAYS AS (strpos(value, ',"open",') > 0) STORED
) WITH (fillfactor = 70);
CREATE INDEX row_open ON dpflow.row (key) WHERE open;
CREATE TABLE dpflow.entry (
    book text COLLATE "C" NOT NULL,
    number bigint NOT NULL CHECK (number > 0),
    kind text COLLATE "C" NOT NULL,
    charge text COLLATE "C",
    postings text COLLATE "C" NOT NULL,
    body text COLLATE "C" NOT NULL,
    at text COLLATE "C" NOT NULL,
    writer text COLLATE "C" NOT NULL,
    hash text COLLATE "C" NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (book, number)
);
CREATE INDEX entry_rare ON dpflow.entry (book, number, kind)
    WHERE kind NOT IN ('reserve', 'settle', 'void', 'seal');
-- A charge is made once in a book, and ends there once.
CREATE UNIQUE INDEX entry_made ON dpflow.entry (charge, book) WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_ended ON dpflow.entry (charge, book)
    WHERE kind IN ('settle', 'void', 'forfeit', 'seal');
CREATE FUNCTION dpflow.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0]
        USING ERRCODE = coalesce(TG_ARGV[1], 'integrity_constraint_violation');
END
$$;
CREATE TRIGGER entry_stays BEFORE UPDATE OR DELETE ON dpflow.entry FOR EACH ROW
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');
CREATE TRIGGER entry_is_kept BEFORE TRUNCATE ON dpflow.entry FOR EACH STATEMENT
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');

-- Only an operator opens terms, and opens a book again that was frozen.
CREATE FUNCTION dpflow.is_operators() RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog AS 'SELECT true';
CREATE FUNCTION dpflow.check_operator() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF NOT has_function_privilege(current_user, 'dpflow.is_operators()', 'EXECUTE') THEN
        RAISE EXCEPTION 'only an operator may %', TG_ARGV[0]
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER entry_is_operators BEFORE INSERT ON dpflow.entry FOR EACH ROW
    WHEN (NEW.kind IN ('open', 'tighten', 'unfreeze', 'repair', 'checkpoint'))
    EXECUTE FUNCTION dpflow.check_operator('write an entry of this kind');
CREATE TRIGGER row_is_operators BEFORE INSERT OR UPDATE ON dpflow.row FOR EACH ROW
    WHEN (NEW.key LIKE 'term:%' OR NEW.key LIKE 'epoch:%')
    EXECUTE FUNCTION dpflow.check_operator('open a term or count a repair');

-- What has ended stays as it is, and nothing goes back.
CREATE FUNCTION dpflow.check_row() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    was CONSTANT json := OLD.value;
    now CONSTANT json := NEW.value;
    -- Beside its first field, what a row was made with and keeps.
    made CONSTANT integer[] := CASE split_part(OLD.key, ':', 1)
        WHEN 'account' THEN ARRAY[0, 1]
        WHEN 'charge' THEN ARRAY[0, 6, 7, 8]
        ELSE ARRAY[0] END;
    field integer;
    wrong text;
BEGIN
    FOREACH field IN ARRAY made LOOP
        IF NEW.key NOT LIKE 'epoch:%' AND now ->> field IS DISTINCT FROM was ->> field THEN
            RAISE EXCEPTION 'a row keeps what it was made with'
                USING ERRCODE = 'insufficient_privilege';
        END IF;
    END LOOP;
    CASE split_part(OLD.key, ':', 1)
    WHEN 'book' THEN
        IF CAST(now ->> 1 AS bigint) < CAST(was ->> 1 AS bigint)
            OR CAST(now ->> 5 AS bigint) < CAST(was ->> 5 AS bigint)
        THEN
            wrong := 'a journal never becomes shorter';
        ELSIF (was ->> 3 IS NOT NULL AND now ->> 3 IS DISTINCT FROM was ->> 3
                OR now ->> 5 <> was ->> 5)
            AND NOT has_function_privilege(
                current_user, 'dpflow.is_operators()', 'EXECUTE')
        THEN
            RAISE EXCEPTION 'only an operator may open a term or unfreeze a dataset'
                USING ERRCODE = 'insufficient_privilege';
        END IF;
    WHEN 'account' THEN
        IF CAST(now ->> 2 AS bigint) < CAST(was ->> 2 AS bigint)
            OR CAST(now ->> 5 AS boolean) < CAST(was ->> 5 AS boolean)
        THEN
            wrong := 'an account never goes back';
        END IF;
    WHEN 'charge' THEN
        -- What was added by hand may change.
        IF was ->> 1 <> 'open' AND CAST(now AS jsonb) - 5 <> CAST(was AS jsonb) - 5 THEN
            wrong := 'a charge that has ended stays as it is';
        END IF;
    WHEN 'release' THEN
        IF was ->> 3 <> 'claimed' AND now ->> 3 = 'settled' THEN
            wrong := 'a settled release stays as it is';
        END IF;
    ELSE NULL;
    END CASE;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '%', wrong USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER row_goes_on BEFORE UPDATE ON dpflow.row FOR EACH ROW
    EXECUTE FUNCTION dpflow.check_row();
CREATE TRIGGER row_is_kept BEFORE DELETE ON dpflow.row FOR EACH ROW
    WHEN (OLD.key LIKE 'release:%' AND OLD.value NOT LIKE '%,"claimed",null]')
    EXECUTE FUNCTION dpflow.refuse_change('a settled release is never deleted');
CREATE TRIGGER row_stays BEFORE DELETE ON dpflow.row FOR EACH ROW
    WHEN (OLD.key NOT LIKE 'release:%')
    EXECUTE FUNCTION dpflow.refuse_change('no such row is deleted',
        'insufficient_privilege');

-- A settled release is claimed again by a charge that makes it anew, or not at all.
CREATE FUNCTION dpflow.check_claimed_again() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    was CONSTANT json := OLD.value;
    now CONSTANT json := NEW.value;
BEGIN
    IF now ->> 3 = 'withdrawn' AND was ->> 3 <> 'withdrawn' AND NOT EXISTS (
        SELECT FROM dpflow.entry
        WHERE entry.book = now ->> 2 AND entry.kind = 'withdraw'
            AND CAST(entry.body AS json) ->> 'release' = now ->> 0
    ) THEN
        RAISE EXCEPTION 'a release is withdrawn by an entry only'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF was ->> 3 = 'claimed' OR now ->> 3 <> 'claimed' THEN
        RETURN NEW;
    END IF;
    PERFORM 1 FROM dpflow.row AS made
    WHERE made.key = 'charge:' || (now ->> 1)
        AND CAST(made.value AS json) ->> 1 = 'open'
        AND CAST(made.value AS json) ->> 7 = now ->> 0;
    IF NOT FOUND OR now ->> 1 = was ->> 1 THEN
        RAISE EXCEPTION 'a settled release is claimed by a new charge only'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER release_claimed_again AFTER UPDATE ON dpflow.row FOR EACH ROW
    WHEN (OLD.key LIKE 'release:%')
    EXECUTE FUNCTION dpflow.check_claimed_again();

-- A transaction that writes has the ledger for itself from here to its end. Readers may
-- not call it, and so no reader stops a step.
CREATE FUNCTION dpflow.take_turn() RETURNS SETOF dpflow.ledger
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS 'SELECT * FROM dpflow.ledger FOR UPDATE';

REVOKE ALL ON ALL TABLES IN SCHEMA dpflow FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow FROM PUBLIC;

-- name: prepare_connection
-- Every statement looks rows up by their keys: no plan may read a whole table because
-- it was small when it was made.
SELECT set_config('search_path', 'dpflow, pg_temp', false),
    set_config('lock_timeout', %(lock_timeout)s, false),
    set_config('statement_timeout', %(statement_timeout)s, false),
    set_config('idle_in_transaction_session_timeout', %(idle_timeout)s, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('default_transaction_read_only', 'off', false),
    set_config('standard_conforming_strings', 'on', false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('enable_seqscan', 'off', false),
    set_config('enable_hashjoin', 'off', false),
    set_config('enable_mergejoin', 'off', false),
    set_config('jit', 'off', false),
    (SELECT CAST(system_identifier AS text) FROM pg_control_system())
        AS system_identifier,
    pg_backend_pid() AS pid,
    current_setting('server_encoding') AS server_encoding,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    pg_is_in_recovery() AS in_recovery,
    to_regclass('dpflow.ledger') IS NOT NULL AS has_ledger,
    to_regclass('dpflow.row') IS NOT NULL AS has_books,
    coalesce(has_column_privilege(to_regclass('dpflow.row'), 'output', 'SELECT'), false)
        AS shows_values

-- name: identity
SELECT ledger_id, min_writer, current_setting('synchronous_commit'),
    current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery()
FROM ledger

-- name: turn
SELECT ledger_id, min_writer, current_setting('synchronous_commit'),
    current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery()
FROM take_turn()

-- name: rows_among_entries
SELECT key, NULL, key, value, output, NULL, NULL, NULL, NULL, NULL FROM (rows) AS named

-- name: store
WITH written AS (
    INSERT INTO entry (book, number, kind, charge, postings, body, at, writer, hash)
    SELECT value ->> 0, CAST(value ->> 1 AS bigint), value ->> 2, value ->> 3,
        value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8
    FROM json_array_elements(CAST(:entries AS json))
),
gone AS (
    DELETE FROM row WHERE key = ANY (CAST(:gone AS text[]))
)
INSERT INTO row (key, value, output)
SELECT value ->> 0, value ->> 1, value ->> 2
FROM json_array_elements(CAST(:rows AS json))
ON CONFLICT (key) DO UPDATE SET value = excluded.value, output = excluded.output

-- Owners.

-- name: owner_connection
SELECT set_config('tcp_keepalives_idle', '30', false),
    set_config('tcp_keepalives_interval', '10', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('idle_session_timeout', '0', false)

-- name: take_owner
SELECT pg_advisory_lock_shared(%(key)s)

-- Only a login that may charge holds a name: any session may take such a lock.
-- name: owner_alive
SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = CAST(%(high)s AS oid) AND objid = CAST(%(low)s AS oid)
    AND objsubid = 1
    AND EXISTS (
        SELECT FROM pg_roles
        WHERE pg_has_role(usesysid, pg_roles.oid, 'MEMBER')
            AND coalesce(has_table_privilege(
                pg_roles.oid, to_regclass('dpflow.entry'), 'INSERT'), true)
    )
