-- What only the PostgreSQL adapter runs, by name; the rest is in statements.sql.

-- name: prepare_connection
SELECT set_config('search_path', 'dpflow, pg_temp', false),
       set_config('lock_timeout', :lock_timeout, false),
       set_config('statement_timeout', :statement_timeout, false),
       set_config('idle_in_transaction_session_timeout', :idle_timeout, false),
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
