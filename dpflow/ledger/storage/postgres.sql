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
    epoch bigint NOT NULL CHECK (epoch >= 0),
    release_secret text COLLATE "C" NOT NULL,
    created_at text COLLATE "C" NOT NULL,
    environment text COLLATE "C"
);
-- Which server this ledger lives on. A promoted standby and a restored copy differ.
CREATE TABLE dpflow.server (
    one bigint PRIMARY KEY CHECK (one = 1),
    system_identifier text COLLATE "C" NOT NULL,
    timeline bigint NOT NULL CHECK (timeline >= 1),
    since text COLLATE "C" NOT NULL,
    writer text COLLATE "C" NOT NULL,
    because text COLLATE "C" NOT NULL
);
CREATE TABLE dpflow.book (
    name text COLLATE "C" PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    -- 0 in a row that was only made to be locked: nobody counts it as a book.
    number bigint NOT NULL CHECK (number >= 0),
    hash text COLLATE "C" NOT NULL,
    frozen text COLLATE "C",
    ran text COLLATE "C" NOT NULL,
    terms bigint NOT NULL CHECK (terms >= 0)
) WITH (fillfactor = 50);
CREATE TABLE dpflow.term (
    book text COLLATE "C" NOT NULL,
    number bigint NOT NULL CHECK (number >= 1),
    entry bigint NOT NULL,
    PRIMARY KEY (book, number)
);
CREATE TABLE dpflow.account (
    id text COLLATE "C" PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 700),
    book text COLLATE "C" NOT NULL,
    entry bigint NOT NULL,
    settled text COLLATE "C" NOT NULL,
    held text COLLATE "C" NOT NULL,
    overdrawn bigint NOT NULL CHECK (overdrawn IN (0, 1)),
    told text COLLATE "C" NOT NULL,
    -- Vectors of non-negative integers, without a space or an empty number.
    CHECK (settled ~ '^\[[0-9]+(?:,[0-9]+)*\]$'),
    CHECK (held ~ '^\[[0-9]+(?:,[0-9]+)*\]$')
) WITH (fillfactor = 50);
CREATE INDEX account_of_book ON dpflow.account (book);
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
CREATE TABLE dpflow.charge (
    id text COLLATE "C" PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 200),
    state text COLLATE "C" NOT NULL
        CHECK (state IN ('open', 'settled', 'void', 'forfeited', 'sealed')),
    owner text COLLATE "C" NOT NULL,
    places text COLLATE "C" NOT NULL,
    held text COLLATE "C" NOT NULL,
    added text COLLATE "C" NOT NULL,
    covers text COLLATE "C",
    key text COLLATE "C",
    epoch bigint NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX charge_open ON dpflow.charge (id) WHERE state = 'open';
CREATE TABLE dpflow.release (
    key text COLLATE "C" PRIMARY KEY CHECK (length(key) BETWEEN 1 AND 200),
    charge text COLLATE "C" NOT NULL,
    book text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL
        CHECK (state IN ('claimed', 'settled', 'forgotten')),
    digest text COLLATE "C",
    value text COLLATE "C"
) WITH (fillfactor = 70);
CREATE TABLE dpflow.run (
    id text COLLATE "C" PRIMARY KEY,
    refused text COLLATE "C" NOT NULL,
    halted text COLLATE "C" NOT NULL,
    preflight text COLLATE "C",
    unheld text COLLATE "C"
);
CREATE TABLE dpflow.granted (
    book text COLLATE "C" NOT NULL,
    step text COLLATE "C" NOT NULL,
    most text COLLATE "C" NOT NULL,
    PRIMARY KEY (book, step)
);
CREATE TABLE dpflow.claim (
    name text COLLATE "C" PRIMARY KEY,
    said text COLLATE "C" NOT NULL
);

CREATE FUNCTION dpflow.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation';
END
$$;
CREATE TRIGGER entry_stays BEFORE UPDATE OR DELETE ON dpflow.entry FOR EACH ROW
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');
CREATE TRIGGER entry_is_kept BEFORE TRUNCATE ON dpflow.entry FOR EACH STATEMENT
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');
CREATE TRIGGER book_goes_on BEFORE UPDATE ON dpflow.book FOR EACH ROW
    WHEN (NEW.number < OLD.number OR NEW.terms < OLD.terms)
    EXECUTE FUNCTION dpflow.refuse_change('a journal never becomes shorter');
CREATE TRIGGER account_goes_on BEFORE UPDATE ON dpflow.account FOR EACH ROW
    WHEN (NEW.entry < OLD.entry OR NEW.overdrawn < OLD.overdrawn)
    EXECUTE FUNCTION dpflow.refuse_change('an account never goes back');
CREATE TRIGGER charge_ends_once BEFORE UPDATE ON dpflow.charge FOR EACH ROW
    WHEN (OLD.state <> 'open'
          AND (NEW.id, NEW.state, NEW.owner, NEW.places, NEW.held, NEW.covers, NEW.key)
              IS DISTINCT FROM
              (OLD.id, OLD.state, OLD.owner, OLD.places, OLD.held, OLD.covers, OLD.key))
    EXECUTE FUNCTION dpflow.refuse_change('a charge that has ended stays as it is');
CREATE TRIGGER release_is_kept BEFORE DELETE ON dpflow.release FOR EACH ROW
    WHEN (OLD.state <> 'claimed')
    EXECUTE FUNCTION dpflow.refuse_change('a settled release is never deleted');
CREATE TRIGGER release_stays BEFORE UPDATE ON dpflow.release FOR EACH ROW
    WHEN (OLD.state <> 'claimed' AND NEW.state = 'settled')
    EXECUTE FUNCTION dpflow.refuse_change('a settled release stays as it is');

-- Only who may open terms may open a book again that was frozen.
CREATE FUNCTION dpflow.check_officer() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF NOT has_table_privilege(current_user, 'dpflow.term', 'INSERT') THEN
        RAISE EXCEPTION 'only an officer may %', TG_ARGV[0]
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER book_is_officers BEFORE UPDATE ON dpflow.book FOR EACH ROW
    WHEN (OLD.frozen IS NOT NULL AND NEW.frozen IS DISTINCT FROM OLD.frozen
          OR NEW.terms <> OLD.terms)
    EXECUTE FUNCTION dpflow.check_officer('open a term or thaw a dataset');
CREATE TRIGGER entry_is_officers BEFORE INSERT ON dpflow.entry FOR EACH ROW
    WHEN (NEW.kind IN ('open', 'tighten', 'thaw', 'repair', 'checkpoint'))
    EXECUTE FUNCTION dpflow.check_officer('write an entry of this kind');

-- A settled release is claimed again by a charge that makes it anew, or not at all.
CREATE FUNCTION dpflow.check_claimed_again() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    PERFORM 1 FROM dpflow.charge AS made
    WHERE made.id = NEW.charge AND made.key = NEW.key AND made.state = 'open';
    IF NOT FOUND OR NEW.charge = OLD.charge THEN
        RAISE EXCEPTION 'a settled release is claimed by a new charge only'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER release_claimed_again AFTER UPDATE ON dpflow.release FOR EACH ROW
    WHEN (OLD.state <> 'claimed' AND NEW.state = 'claimed')
    EXECUTE FUNCTION dpflow.check_claimed_again();

-- Who may not read released values is shown none.
CREATE FUNCTION dpflow.value_of(wanted text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog AS $$
BEGIN
    IF NOT has_column_privilege('dpflow.release', 'value', 'SELECT') THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT kept.value FROM dpflow.release AS kept WHERE kept.key = wanted);
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
INSERT INTO dpflow.ledger (one, ledger_id, schema_version, min_writer, epoch,
    release_secret, created_at, environment)
VALUES (1, %(ledger_id)s, %(version)s, %(version)s, 0, %(secret)s, %(at)s,
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
    to_regclass('dpflow.book') IS NOT NULL AS has_books

-- name: version
SELECT schema_version FROM ledger

-- name: identity
SELECT ledger_id, environment, created_at, min_writer FROM ledger

-- name: pin_server
INSERT INTO dpflow.server (one, system_identifier, timeline, since, writer, because)
VALUES (1, %(system_identifier)s,
    CAST(CAST('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
        AS bit(32)) AS integer),
    %(since)s, %(writer)s, %(because)s)
ON CONFLICT (one) DO UPDATE SET system_identifier = excluded.system_identifier,
    timeline = excluded.timeline,
    since = excluded.since,
    writer = excluded.writer,
    because = excluded.because

-- name: lock_ledger
LOCK TABLE ledger IN ACCESS EXCLUSIVE MODE

-- A load: in one trip, a book that has no row gets one, the books are locked in the
-- order of their names, and all is read that the keys lead to.

-- name: make_books
INSERT INTO book (name, number, hash, ran, terms)
SELECT wanted.name, 0, '', '{}', 0
FROM unnest(CAST(%(books)s AS text[])) AS wanted (name)
ORDER BY wanted.name COLLATE "C"
ON CONFLICT (name) DO NOTHING

-- name: lock
SELECT name FROM book WHERE name = ANY (CAST(%(books)s AS text[]))
ORDER BY name FOR UPDATE

-- name: lock_charges
SELECT name FROM book
WHERE name = ANY (CAST(%(books)s AS text[]) || ARRAY(
    SELECT json_object_keys(CAST(charge.places AS json)) FROM charge
    WHERE charge.id = ANY (CAST(%(charges)s AS text[]) || ARRAY(
        SELECT run.preflight FROM run WHERE run.id = ANY (CAST(%(runs)s AS text[]))
    ))
))
ORDER BY name FOR UPDATE

-- name: lock_runs
-- The steps of a run draw from one preflight in several books.
SELECT run.id FROM run JOIN charge ON charge.id = run.preflight
WHERE run.id = ANY (CAST(%(runs)s AS text[]))
ORDER BY run.id, charge.id FOR UPDATE

-- name: load
WITH run_row AS MATERIALIZED (
    SELECT xmin, * FROM run WHERE id = ANY (CAST(%(runs)s AS text[]))
),
charge_row AS MATERIALIZED (
    SELECT xmin, * FROM charge
    WHERE id = ANY (CAST(%(charges)s AS text[])
        || ARRAY(SELECT run_row.preflight FROM run_row)
        || ARRAY(
            SELECT release.charge FROM release
            WHERE release.key = ANY (CAST(%(releases)s AS text[]))))
),
place (book, made, ended, moves) AS MATERIALIZED (
    SELECT part.key, CAST(part.value ->> 0 AS bigint), CAST(part.value ->> 1 AS bigint),
        CAST(%(reach)s AS bigint) > 0
        AND charge_row.id = ANY (CAST(%(charges)s AS text[])
            || ARRAY(SELECT run_row.preflight FROM run_row))
    FROM charge_row, json_each(CAST(charge_row.places AS json)) AS part
),
book_row AS MATERIALIZED (
    SELECT book.*, term.number AS newest, term.entry AS pinned
    FROM book
    LEFT JOIN term ON term.book = book.name AND term.number = book.terms
        AND book.name = ANY (CAST(%(books)s AS text[]))
    WHERE book.number > 0
        AND book.name = ANY (CAST(%(books)s AS text[])
            || ARRAY(SELECT place.book FROM place WHERE place.moves))
),
account_row AS MATERIALIZED (
    SELECT * FROM account
    WHERE id = ANY (
        ARRAY(
            SELECT book_row.name || '#' || book_row.terms || gate.place
            FROM unnest(CAST(%(gate_books)s AS text[]), CAST(%(gate_places)s AS text[]))
                AS gate (book, place)
            JOIN book_row ON book_row.name = gate.book)
        || ARRAY(
            SELECT json_object_keys(CAST(entry.postings AS json))
            FROM place
            JOIN entry ON entry.book = place.book AND entry.number = place.made
            WHERE place.moves)
        || ARRAY(
            SELECT whole.id FROM account AS whole
            WHERE whole.book = ANY (CAST(%(whole)s AS text[])))
    )
),
term_row AS MATERIALIZED (
    SELECT term.book, term.number, term.entry
    FROM account_row
    JOIN term ON term.book = account_row.book AND term.number
        = CAST(split_part(split_part(account_row.id, '#', 2), '/', 1) AS bigint)
    WHERE CAST(%(reach)s AS bigint) > 1
    UNION ALL
    SELECT term.book, term.number, term.entry FROM term
    WHERE term.book = ANY (CAST(%(whole)s AS text[]))
),
behind (book, number) AS (
    SELECT name, number FROM book_row
    UNION SELECT name, pinned FROM book_row WHERE pinned IS NOT NULL
    UNION SELECT book, entry FROM term_row
    UNION SELECT book, entry FROM account_row
    UNION SELECT book, made FROM place
    UNION SELECT book, ended FROM place WHERE ended > 0
    UNION SELECT CAST(unheld AS json) ->> 0, CAST(CAST(unheld AS json) ->> 1 AS bigint)
        FROM run_row WHERE unheld IS NOT NULL
    UNION SELECT further.book, further.number
        FROM unnest(CAST(%(entry_books)s AS text[]), CAST(%(entry_numbers)s AS bigint[]))
            AS further (book, number)
)
SELECT 'epoch', ledger.epoch, ledger.min_writer,
    CASE WHEN pg_is_in_recovery() THEN 0 ELSE
        CAST(CAST('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
            AS bit(32)) AS bigint)
    END,
    server.timeline, ledger.ledger_id, server.system_identifier,
    current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes'), CAST(pg_is_in_recovery() AS text),
    NULL, NULL, NULL
FROM ledger LEFT JOIN server ON server.one = ledger.one
UNION ALL
SELECT 'book', number, terms, newest, pinned, name, hash, frozen, ran,
    NULL, NULL, NULL, NULL, NULL
FROM book_row
UNION ALL
SELECT 'term', number, entry, NULL, NULL, book,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM term_row
UNION ALL
SELECT 'account', entry, overdrawn, NULL, NULL, id, book, settled, held, told,
    NULL, NULL, NULL, NULL
FROM account_row
UNION ALL
SELECT 'charge', epoch, NULL, NULL, NULL, id, state, owner, places, held, added, covers,
    key, CAST(xmin AS text)
FROM charge_row
UNION ALL
SELECT 'release', NULL, NULL, NULL, NULL, key, charge, book, state, digest,
    CASE state WHEN 'settled' THEN value_of(key) END,
    NULL, NULL, CAST(xmin AS text)
FROM release
WHERE key = ANY (CAST(%(releases)s AS text[])
    || ARRAY(SELECT charge_row.key FROM charge_row))
UNION ALL
SELECT 'run', NULL, NULL, NULL, NULL, id, refused, halted, preflight, unheld,
    NULL, NULL, NULL, CAST(xmin AS text)
FROM run_row
UNION ALL
SELECT 'granted', NULL, NULL, NULL, NULL, granted.book, granted.step, granted.most,
    NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest(CAST(%(granted_books)s AS text[]), CAST(%(granted_steps)s AS text[]))
    AS wanted (book, step)
JOIN granted ON granted.book = wanted.book AND granted.step = wanted.step
UNION ALL
SELECT 'claim', NULL, NULL, NULL, NULL, name, said,
    NULL, NULL, NULL, NULL, NULL, NULL, CAST(xmin AS text)
FROM claim
WHERE name = ANY (CAST(%(claims)s AS text[]))
UNION ALL
SELECT 'entry', entry.number, NULL, NULL, NULL, entry.book, entry.kind, entry.charge,
    entry.postings, entry.body, entry.at, entry.writer, entry.hash,
    coalesce(before.hash, '')
FROM behind
JOIN entry ON entry.book = behind.book AND entry.number = behind.number
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1

-- Questions of who only reads.

-- name: entries
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM unnest(CAST(%(books)s AS text[]), CAST(%(numbers)s AS bigint[]))
    AS wanted (book, number)
JOIN entry ON entry.book = wanted.book AND entry.number = wanted.number
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1

-- name: after
SELECT book, number, kind, charge, postings, body, at, writer, hash
FROM entry WHERE book = %(book)s AND number > %(after)s
ORDER BY number LIMIT %(limit)s

-- name: newest
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = %(book)s
    AND entry.number < coalesce(CAST(%(before)s AS bigint), 9223372036854775807)
ORDER BY entry.number DESC LIMIT %(limit)s

-- name: rare
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = %(book)s
    AND entry.number < coalesce(CAST(%(before)s AS bigint), 9223372036854775807)
    AND entry.kind NOT IN ('reserve', 'settle', 'void', 'seal')
ORDER BY entry.number DESC LIMIT %(limit)s

-- name: rare_of_kind
SELECT entry.book, entry.number, entry.kind, entry.charge, entry.postings, entry.body,
    entry.at, entry.writer, entry.hash, coalesce(before.hash, '')
FROM entry
LEFT JOIN entry AS before
    ON before.book = entry.book AND before.number = entry.number - 1
WHERE entry.book = %(book)s
    AND entry.number < coalesce(CAST(%(before)s AS bigint), 9223372036854775807)
    AND entry.kind = %(kind)s AND entry.kind NOT IN ('reserve', 'settle', 'void', 'seal')
ORDER BY entry.number DESC LIMIT %(limit)s

-- name: books
SELECT name FROM book WHERE number > 0 ORDER BY name

-- name: open_charges
SELECT id FROM charge WHERE state = 'open' ORDER BY id

-- name: releases
SELECT key, charge, book, state, digest,
    CASE state WHEN 'settled' THEN length(value_of(key)) END
FROM release ORDER BY key

-- What follows reads rows as they are kept, for who checks all of them.

-- name: kept_book
SELECT name, number, hash, frozen, ran, terms FROM book
WHERE number > 0 AND name > %(above)s ORDER BY name LIMIT %(limit)s

-- name: kept_term
SELECT book, number, entry FROM term ORDER BY book, number

-- name: kept_account
SELECT id, book, entry, settled, held, overdrawn, told FROM account
WHERE id > %(above)s ORDER BY id LIMIT %(limit)s

-- name: kept_charge
SELECT id, state, owner, places, held, added, covers, key, epoch FROM charge
WHERE id > %(above)s ORDER BY id LIMIT %(limit)s

-- name: kept_release
SELECT key, charge, book, state, digest, value_of(key) FROM release
WHERE key > %(above)s ORDER BY key LIMIT %(limit)s

-- name: kept_run
SELECT id, refused, halted, preflight, unheld FROM run
WHERE id > %(above)s ORDER BY id LIMIT %(limit)s

-- name: kept_granted
SELECT book, step, most FROM granted ORDER BY book, step

-- name: kept_claim
SELECT name, said FROM claim WHERE name > %(above)s ORDER BY name LIMIT %(limit)s

-- name: secret
SELECT release_secret FROM ledger

-- What a decision writes, in one trip with the COMMIT. A book's lock keeps its rows for
-- the transaction; of others, the version that was read must be the one that is written,
-- and what was not there must still not be there.

-- name: store
WITH written AS (
    INSERT INTO entry (book, number, kind, charge, postings, body, at, writer, hash)
    SELECT row ->> 0, CAST(row ->> 1 AS bigint), row ->> 2, row ->> 3, row ->> 4,
        row ->> 5, row ->> 6, row ->> 7, row ->> 8
    FROM jsonb_array_elements(CAST(%(entry)s AS jsonb)) AS row
),
moved_book AS (
    UPDATE book SET number = CAST(row ->> 1 AS bigint),
        hash = row ->> 2,
        frozen = row ->> 3,
        ran = row ->> 4,
        terms = CAST(row ->> 5 AS bigint)
    FROM jsonb_array_elements(CAST(%(book)s AS jsonb)) AS row
    WHERE book.name = row ->> 0
    RETURNING 1
),
moved_account AS (
    INSERT INTO account (id, book, entry, settled, held, overdrawn, told)
    SELECT row ->> 0, row ->> 1, CAST(row ->> 2 AS bigint), row ->> 3, row ->> 4,
        CAST(row ->> 5 AS bigint), row ->> 6
    FROM jsonb_array_elements(CAST(%(account)s AS jsonb)) AS row
    ON CONFLICT (id) DO UPDATE SET entry = excluded.entry,
        settled = excluded.settled,
        held = excluded.held,
        overdrawn = excluded.overdrawn,
        told = excluded.told
),
moved_charge AS (
    INSERT INTO charge (id, state, owner, places, held, added, covers, key, epoch)
    SELECT row ->> 0, row ->> 1, row ->> 2, row ->> 3, row ->> 4, row ->> 5, row ->> 6,
        row ->> 7, CAST(row ->> 8 AS bigint)
    FROM jsonb_array_elements(CAST(%(charge)s AS jsonb)) AS row
    ON CONFLICT (id) DO UPDATE SET state = excluded.state,
        owner = excluded.owner,
        places = excluded.places,
        held = excluded.held,
        added = excluded.added
    WHERE charge.xmin = ANY (CAST(%(versions)s AS xid[]))
    RETURNING 1
),
moved_release AS (
    INSERT INTO release (key, charge, book, state, digest, value)
    SELECT row ->> 0, row ->> 1, row ->> 2, row ->> 3, row ->> 4, row ->> 5
    FROM jsonb_array_elements(CAST(%(release)s AS jsonb)) AS row
    ON CONFLICT (key) DO UPDATE SET charge = excluded.charge,
        book = excluded.book,
        state = excluded.state,
        digest = excluded.digest,
        value = excluded.value
    WHERE release.xmin = ANY (CAST(%(versions)s AS xid[]))
    RETURNING 1
),
moved_granted AS (
    INSERT INTO granted (book, step, most)
    SELECT row ->> 0, row ->> 1, row ->> 2
    FROM jsonb_array_elements(CAST(%(granted)s AS jsonb)) AS row
    ON CONFLICT (book, step) DO UPDATE SET most = excluded.most
)
SELECT CASE
    WHEN (SELECT count(*) FROM moved_book)
            = jsonb_array_length(CAST(%(book)s AS jsonb))
        AND (SELECT count(*) FROM moved_charge)
            = jsonb_array_length(CAST(%(charge)s AS jsonb))
        AND (SELECT count(*) FROM moved_release)
            = jsonb_array_length(CAST(%(release)s AS jsonb))
    THEN true ELSE dpflow.changed_meanwhile() END

-- What few transactions write, before the rest.

-- name: term
INSERT INTO term (book, number, entry)
SELECT row ->> 0, CAST(row ->> 1 AS bigint), CAST(row ->> 2 AS bigint)
FROM jsonb_array_elements(CAST(%(rows)s AS jsonb)) AS row
ON CONFLICT (book, number) DO UPDATE SET entry = excluded.entry

-- name: run
WITH moved AS (
    INSERT INTO run (id, refused, halted, preflight, unheld)
    SELECT row ->> 0, row ->> 1, row ->> 2, row ->> 3, row ->> 4
    FROM jsonb_array_elements(CAST(%(rows)s AS jsonb)) AS row
    ON CONFLICT (id) DO UPDATE SET refused = excluded.refused,
        halted = excluded.halted,
        preflight = excluded.preflight,
        unheld = excluded.unheld
    WHERE run.xmin = ANY (CAST(%(versions)s AS xid[]))
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM moved)
        = jsonb_array_length(CAST(%(rows)s AS jsonb))
    THEN true ELSE dpflow.changed_meanwhile() END

-- name: claim
WITH moved AS (
    INSERT INTO claim (name, said)
    SELECT row ->> 0, row ->> 1 FROM jsonb_array_elements(CAST(%(rows)s AS jsonb)) AS row
    ON CONFLICT (name) DO UPDATE SET said = excluded.said
    WHERE claim.xmin = ANY (CAST(%(versions)s AS xid[]))
    RETURNING 1
)
SELECT CASE WHEN (SELECT count(*) FROM moved)
        = jsonb_array_length(CAST(%(rows)s AS jsonb))
    THEN true ELSE dpflow.changed_meanwhile() END

-- name: epoch
WITH moved AS (
    UPDATE ledger SET epoch = %(epoch)s WHERE epoch = %(before)s RETURNING 1
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM moved)
    THEN true ELSE dpflow.changed_meanwhile() END

-- name: drop_release
WITH moved AS (
    DELETE FROM release
    WHERE key = %(key)s AND xmin = ANY (CAST(%(versions)s AS xid[]))
    RETURNING 1
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM moved)
    THEN true ELSE dpflow.changed_meanwhile() END

-- Owners.

-- name: owner_connection
SELECT set_config('tcp_keepalives_idle', '30', false),
    set_config('tcp_keepalives_interval', '10', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('idle_session_timeout', '0', false)

-- name: take_owner
SELECT pg_advisory_lock_shared(%(key)s)

-- name: owner_alive
SELECT 1 FROM pg_locks
WHERE locktype = 'advisory' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = CAST(%(high)s AS oid) AND objid = CAST(%(low)s AS oid)
    AND objsubid = 1
