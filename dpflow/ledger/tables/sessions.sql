-- Statements about a session with PostgreSQL, of a ledger or of a witness.

-- name: prepare_connection
-- Every statement looks rows up by their keys: no plan may read a whole table because
-- it was small when it was made.
SELECT set_config('search_path', 'dpflow, pg_temp', false),
    set_config('lock_timeout', :lock_timeout, false),
    set_config('statement_timeout', :statement_timeout, false),
    set_config('idle_in_transaction_session_timeout', :idle_timeout, false),
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
    session_user AS login

-- name: durable
SELECT current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes'), pg_is_in_recovery()

-- name: is_denied
-- A login without the right to the schema sees no tables in it.
SELECT count(*) FROM pg_namespace
WHERE nspname = 'dpflow' AND NOT has_schema_privilege(oid, 'USAGE')

-- name: take_owner
SELECT pg_advisory_lock_shared(:key)

-- name: owner_alive
-- Only a login that may charge holds a name: any session may take such a lock.
SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND CAST(classid AS bigint) << 32 | CAST(objid AS bigint) = :key
    AND EXISTS (
        SELECT FROM pg_roles
        WHERE pg_has_role(usesysid, pg_roles.oid, 'MEMBER')
            AND coalesce(has_table_privilege(
                pg_roles.oid, to_regclass('dpflow.journal'), 'INSERT'), true)
    )
