-- What only the PostgreSQL adapter runs, by name; the rest is in statements.sql.

-- name: prepare_connection
SELECT set_config('search_path', 'dpflow, pg_temp', false),
       set_config('lock_timeout', :lock_timeout, false),
       set_config('statement_timeout', :statement_timeout, false),
       set_config('idle_in_transaction_session_timeout', :idle_timeout, false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('default_transaction_read_only', 'off', false),
       set_config('standard_conforming_strings', 'on', false),
       (SELECT CAST(system_identifier AS text) FROM pg_control_system())
           AS system_identifier,
       pg_backend_pid() AS pid,
       current_setting('server_encoding') AS server_encoding,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       pg_is_in_recovery() AS in_recovery,
       to_regclass('dpflow.ledger') IS NOT NULL AS has_ledger;

-- name: check_server
SELECT server.system_identifier AS pinned_identifier,
       server.timeline AS pinned_timeline,
       CASE WHEN pg_is_in_recovery() THEN 0 ELSE
           CAST(CAST('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
                     AS bit(32)) AS integer)
       END AS timeline,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       pg_is_in_recovery() AS in_recovery
FROM server;

-- name: pin_server
INSERT INTO server (one, system_identifier, timeline, since, writer, because)
VALUES (1, :system_identifier,
        CAST(CAST('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
                  AS bit(32)) AS integer),
        :since, :writer, :because)
ON CONFLICT (one) DO UPDATE
SET system_identifier = excluded.system_identifier, timeline = excluded.timeline,
    since = excluded.since, writer = excluded.writer, because = excluded.because;

-- name: make_lockable
INSERT INTO lockable (name)
SELECT name FROM unnest(CAST(:names AS text[])) AS wanted (name) ORDER BY name
ON CONFLICT (name) DO NOTHING;

-- name: lock
SELECT name FROM lockable WHERE name = ANY (CAST(:names AS text[]))
ORDER BY name FOR UPDATE;

-- name: lock_ledger
LOCK TABLE ledger IN ACCESS EXCLUSIVE MODE;

-- name: owner_connection
SELECT set_config('tcp_keepalives_idle', '30', false),
       set_config('tcp_keepalives_interval', '10', false),
       set_config('tcp_keepalives_count', '3', false),
       set_config('idle_session_timeout', '0', false);

-- name: take_owner
SELECT pg_advisory_lock_shared(:key);

-- name: owner_alive
SELECT 1 AS alive FROM pg_locks
WHERE locktype = 'advisory' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid = CAST(:high AS oid) AND objid = CAST(:low AS oid) AND objsubid = 1;

-- The witness, in another database than the ledger's.

-- name: has_witness
SELECT to_regclass('dpflow_witness.line') IS NOT NULL
   AND to_regclass('dpflow_witness.source') IS NOT NULL AS found;

-- name: lock_witness
SELECT pg_advisory_xact_lock(
           hashtextextended('dpflow_witness ' || CAST(:name AS text), 0)),
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       pg_is_in_recovery() AS in_recovery;

-- name: witness_headers
SELECT content FROM dpflow_witness.line WHERE ledger = :ledger AND number = 0;

-- name: begin_witness
INSERT INTO dpflow_witness.line (ledger, epoch, number, account, content)
SELECT :ledger, :epoch, told.position - 1, told.account, told.content
FROM unnest(CAST(:accounts AS text[]), CAST(:texts AS text[]))
    WITH ORDINALITY AS told (account, content, position)
WHERE NOT EXISTS (SELECT 1 FROM dpflow_witness.line AS known
                  WHERE known.ledger = :ledger AND known.epoch >= :epoch);

-- name: append_witness
INSERT INTO dpflow_witness.line (ledger, epoch, number, account, content)
SELECT :ledger, :epoch, newest.number + told.position, told.account, told.content
FROM (SELECT max(known.number) AS number FROM dpflow_witness.line AS known
      WHERE known.ledger = :ledger AND known.epoch = :epoch) AS newest,
     unnest(CAST(:accounts AS text[]), CAST(:texts AS text[]))
         WITH ORDINALITY AS told (account, content, position)
WHERE newest.number IS NOT NULL;

-- name: read_witness
SELECT number, content FROM dpflow_witness.line
WHERE ledger = :ledger AND epoch = :epoch AND number > :above ORDER BY number;

-- name: claim_source
INSERT INTO dpflow_witness.source (name, ledger) VALUES (:source, :ledger)
ON CONFLICT (name) DO NOTHING;

-- name: read_source
SELECT ledger FROM dpflow_witness.source WHERE name = :source;

-- Here an entry has its position in its own row.

-- name: unlisted
SELECT account, seq FROM entry WHERE position IS NULL LIMIT 1;

-- name: history
SELECT entry.account, entry.seq, entry.kind, entry.reservation, entry.amount,
       entry.settled_after, entry.held_after, entry.run, entry.body, entry.at,
       entry.writer, entry.hash
FROM account
JOIN entry ON entry.account = account.id AND entry.seq > account.seq - :limit
WHERE (CAST(:dataset AS TEXT) IS NULL OR account.dataset = :dataset)
  AND (CAST(:account_kind AS TEXT) IS NULL OR account.kind = :account_kind)
ORDER BY entry.position DESC LIMIT :limit;

-- name: refusals
SELECT entry.account, entry.seq, entry.reservation, entry.run, entry.body, entry.at,
       entry.position, account.dataset, account.term
FROM entry JOIN account ON account.id = entry.account
WHERE entry.kind = 'refuse' ORDER BY entry.position DESC LIMIT :limit;

-- name: reserved_since
SELECT entry.body, entry.position
FROM entry
WHERE entry.position > :above AND entry.account = :account AND entry.kind = 'reserve'
ORDER BY entry.position LIMIT :limit;

-- name: refusals_of_run
SELECT entry.account, entry.seq, entry.body, account.dataset
FROM refused
JOIN entry ON entry.account = refused.account AND entry.seq = refused.seq
JOIN account ON account.id = entry.account
WHERE refused.run = :run ORDER BY entry.position;
