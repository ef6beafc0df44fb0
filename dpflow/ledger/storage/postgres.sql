-- Every statement of a ledger in PostgreSQL, by name. Nothing else in dpflow holds SQL
-- for it but roles.sql and the witness. Rows are what `journal.follow` makes of the
-- entries; only entries are never changed.

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
-- Every row by its key, as text; beside that of a release, the output that is kept. A
-- book without an entry, of number 0, is there to be locked: nobody counts it as one.
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

-- Who may not read released values is shown none.
CREATE FUNCTION dpflow.value_of(wanted text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
    IF NOT has_column_privilege('dpflow.row', 'output', 'SELECT') THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT kept.output FROM dpflow.row AS kept WHERE kept.key = wanted);
END
$$;

-- Ends a transaction whose rows somebody else wrote since they were read.
CREATE FUNCTION dpflow.changed_meanwhile() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION 'somebody else wrote the same rows meanwhile'
        USING ERRCODE = 'serialization_failure';
END
$$;

REVOKE ALL ON ALL TABLES IN SCHEMA dpflow FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow FROM PUBLIC;

-- name: create_ledger
INSERT INTO dpflow.ledger (one, ledger_id, schema_version, min_writer,
    release_secret, created_at, environment)
VALUES (1, %(ledger_id)s, %(version)s, %(version)s, %(secret)s, %(at)s,
    %(environment)s)

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
    set_config('enable_hashagg', 'off', false),
    set_config('enable_memoize', 'off', false),
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
    to_regclass('dpflow.row') IS NOT NULL AS has_books

-- name: identity
SELECT ledger_id, environment, created_at, min_writer FROM ledger

-- A load: in one trip, a book that has no row gets one, the books are locked in the
-- order of their names, and all is read that the keys lead to. Keys are their texts.

-- name: make_books
INSERT INTO row (key, value)
SELECT wanted.key, wanted.value
FROM unnest(CAST(:books AS text[]), CAST(:blanks AS text[])) AS wanted (key, value)
ORDER BY wanted.key COLLATE "C"
ON CONFLICT (key) DO NOTHING

-- name: lock
SELECT key FROM row WHERE key = ANY (CAST(:books AS text[]))
ORDER BY key FOR UPDATE

-- name: lock_charges
SELECT key FROM row
WHERE key = ANY (CAST(:books AS text[]) || ARRAY(
    SELECT 'book:' || json_object_keys(CAST(charge.value AS json) -> 3) FROM row AS charge
    WHERE charge.key = ANY (CAST(:charges AS text[]) || ARRAY(
        SELECT 'charge:' || (CAST(run.value AS json) ->> 3)
        FROM row AS run WHERE run.key = ANY (CAST(:runs AS text[]))
    ))
))
ORDER BY key FOR UPDATE

-- name: lock_runs
-- The steps of a run draw from one preflight in several books.
SELECT key FROM row
WHERE key = ANY (CAST(:runs AS text[]) || ARRAY(
    SELECT 'charge:' || (CAST(run.value AS json) ->> 3)
    FROM row AS run WHERE run.key = ANY (CAST(:runs AS text[]))
))
ORDER BY key FOR UPDATE

-- name: load
WITH named AS MATERIALIZED (
    SELECT xmin, key, value, CAST(value AS json) AS fields FROM row
    WHERE key = ANY (CAST(:keys AS text[]))
),
held (key) AS MATERIALIZED (
    SELECT 'charge:' || (fields ->> 3) FROM named WHERE key = ANY (CAST(:runs AS text[]))
),
made AS MATERIALIZED (
    SELECT xmin, key, value, CAST(value AS json) AS fields FROM row
    WHERE key = ANY (CAST(:charges AS text[])
        || ARRAY(SELECT held.key FROM held)
        || ARRAY(SELECT 'charge:' || (fields ->> 1) FROM named
            WHERE key = ANY (CAST(:releases AS text[]))))
),
place (book, made, ended, moves) AS MATERIALIZED (
    SELECT part.key, CAST(part.value ->> 0 AS bigint), CAST(part.value ->> 1 AS bigint),
        CAST(:reach AS bigint) > 0 AND made.key = ANY (CAST(:charges AS text[])
            || ARRAY(SELECT held.key FROM held))
    FROM made, json_each(made.fields -> 3) AS part
),
book AS MATERIALIZED (
    SELECT xmin, key, value, CAST(value AS json) AS fields FROM row
    WHERE key = ANY (CAST(:books AS text[])
        || ARRAY(SELECT 'book:' || place.book FROM place WHERE place.moves))
),
further AS MATERIALIZED (
    SELECT xmin, key, value, CAST(value AS json) AS fields FROM row
    WHERE key = ANY (
        ARRAY(SELECT 'term:' || (fields ->> 0) || '#' || (fields ->> 5) FROM book)
        || ARRAY(SELECT 'release:' || (fields ->> 7) FROM made)
        || ARRAY(
            SELECT 'account:' || (fields ->> 0) || '#' || (fields ->> 5) || gate.place
            FROM unnest(CAST(:gate_books AS text[]), CAST(:gate_places AS text[]))
                AS gate (book, place)
            JOIN book ON book.key = gate.book)
        || ARRAY(
            SELECT 'account:' || json_object_keys(CAST(entry.postings AS json))
            FROM place
            JOIN entry ON entry.book = place.book AND entry.number = place.made
            WHERE place.moves)
        || ARRAY(
            SELECT part.key FROM unnest(CAST(:whole AS text[])) AS whole (book)
            JOIN row AS part ON part.key >= 'account:' || whole.book || '#'
                AND part.key < 'account:' || whole.book || '$')
        || ARRAY(
            SELECT 'account:' || (fields ->> 0) || '#' || number
            FROM book, generate_series(1, CAST(fields ->> 5 AS bigint)) AS number
            WHERE (fields ->> 0) = ANY (CAST(:terms AS text[])))
        || CAST(:accounts AS text[])
        || ARRAY(
            SELECT part.key FROM unnest(CAST(:terms AS text[])) AS known (book)
            JOIN row AS part ON part.key >= 'term:' || known.book || '#'
                AND part.key < 'term:' || known.book || '$')
    )
),
term AS MATERIALIZED (
    SELECT xmin, key, value, CAST(value AS json) AS fields FROM row
    WHERE CAST(:reach AS bigint) > 1 AND key = ANY (ARRAY(
        SELECT 'term:' || (fields ->> 1) || '#'
            || split_part(split_part(fields ->> 0, '#', 2), '/', 1)
        FROM further WHERE key >= 'account:' AND key < 'account;'))
),
found AS MATERIALIZED (
    SELECT * FROM named UNION ALL SELECT * FROM made UNION ALL SELECT * FROM book
    UNION ALL SELECT * FROM further UNION ALL SELECT * FROM term
),
behind (book, number) AS (
    SELECT fields ->> 0, CAST(fields ->> 1 AS bigint) FROM book
    UNION SELECT fields ->> 0, CAST(fields ->> 2 AS bigint)
        FROM found WHERE key >= 'term:' AND key < 'term;'
    UNION SELECT fields ->> 1, CAST(fields ->> 2 AS bigint)
        FROM further WHERE key >= 'account:' AND key < 'account;'
    UNION SELECT place.book, place.made FROM place
    UNION SELECT place.book, place.ended FROM place
    UNION SELECT fields -> 4 ->> 0, CAST(fields -> 4 ->> 1 AS bigint)
        FROM named WHERE key = ANY (CAST(:runs AS text[])) AND fields ->> 4 IS NOT NULL
    UNION SELECT other.book, other.number
        FROM unnest(CAST(:entry_books AS text[]), CAST(:entry_numbers AS bigint[]))
            AS other (book, number)
)
SELECT 'ledger', ledger.ledger_id, CAST(ledger.min_writer AS text),
    current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes'), CAST(pg_is_in_recovery() AS text),
    NULL, NULL, NULL, NULL
FROM ledger
UNION ALL
SELECT 'row', key, value,
    CASE WHEN key >= 'release:' AND key < 'release;' THEN value_of(key) END,
    CAST(xmin AS text), NULL, NULL, NULL, NULL, NULL, NULL
FROM found
UNION ALL
SELECT 'entry', entry.book, CAST(entry.number AS text), entry.kind, entry.charge,
    entry.postings, entry.body, entry.at, entry.writer, entry.hash, before.hash
FROM behind
JOIN entry ON entry.book = behind.book AND entry.number = behind.number
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1

-- Questions of who only reads.

-- name: entries
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM unnest(CAST(:books AS text[]), CAST(:numbers AS bigint[]))
    AS wanted (book, number)
JOIN entry ON entry.book = wanted.book AND entry.number = wanted.number
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1

-- name: rare
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = :book AND entry.number < CAST(:before AS bigint)
    AND entry.kind NOT IN ('reserve', 'settle', 'void', 'seal')
    AND CAST(:kind AS text) IN ('', entry.kind)
ORDER BY entry.number DESC LIMIT CAST(:limit AS bigint)

-- name: open_charges
SELECT key, value FROM row WHERE open

-- name: releases
SELECT key, value, length(value_of(key)) FROM row
WHERE key > 'release:' AND key < 'release;'

-- name: charges_of
SELECT charge FROM entry
WHERE book >= CAST(:first AS text) AND book <= CAST(:last AS text)
    AND kind = 'reserve' AND strpos(body, CAST(:text AS text)) > 0

-- name: kept
SELECT key, value,
    CASE WHEN key > 'release:' AND key < 'release;' THEN value_of(key) END
FROM row
WHERE key > :above AND key < :below
    AND NOT (key > 'book:' AND key < 'book;' AND value LIKE '%",0,"",null,{},0]')
ORDER BY key LIMIT CAST(:limit AS bigint)

-- name: keys
SELECT key FROM row WHERE key >= :above AND key < :below

-- What a decision writes, in one trip with the COMMIT. A book's lock keeps its rows for
-- the transaction; of others, the version that was read must be the one that is written,
-- and what was not there must still not be there.

-- name: store
WITH written AS (
    INSERT INTO entry (book, number, kind, charge, postings, body, at, writer, hash)
    SELECT part ->> 0, CAST(part ->> 1 AS bigint), part ->> 2, part ->> 3, part ->> 4,
        part ->> 5, part ->> 6, part ->> 7, part ->> 8
    FROM json_array_elements(CAST(:entries AS json)) AS part
),
moved AS (
    INSERT INTO row (key, value, output)
    SELECT part ->> 0, part ->> 1, part ->> 2
    FROM json_array_elements(CAST(:rows AS json)) AS part
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, output = excluded.output
    WHERE row.xmin = ANY (CAST(:versions AS xid[]))
    RETURNING 1
),
gone AS (
    DELETE FROM row
    WHERE key = ANY (CAST(:gone AS text[])) AND xmin = ANY (CAST(:versions AS xid[]))
    RETURNING 1
)
SELECT CASE
    WHEN (SELECT count(*) FROM moved) = json_array_length(CAST(:rows AS json))
        AND (SELECT count(*) FROM gone) = cardinality(CAST(:gone AS text[]))
    THEN true ELSE dpflow.changed_meanwhile() END

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
