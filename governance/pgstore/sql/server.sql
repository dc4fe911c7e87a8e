-- name: server
-- What the doctor, and a process that starts, tell of the server. PostgreSQL 15 knows no reserved_connections.
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::int / 10000 AS major,
       current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean
           AND current_setting('synchronous_commit') <> 'off' AS durable,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true), '0')::int AS connections,
       pg_backend_pid()::bigint AS backend;

-- name: server_owner
-- Who is asking, and whether that role may do what the owner of the ledger may. No row: there is no ledger.
SELECT current_user::text AS role, pg_has_role(n.nspowner, 'USAGE') AS owns
FROM pg_namespace AS n
WHERE n.nspname = 'ledger';
