-- name: session_timeouts
SELECT max(setting::bigint) FILTER (WHERE name = 'lock_timeout') AS lock_ms,
    max(setting::bigint) FILTER (WHERE name = 'statement_timeout') AS statement_ms
FROM pg_settings
WHERE name IN ('lock_timeout', 'statement_timeout');

-- name: schema_exists
SELECT to_regclass('schema_migrations') IS NOT NULL;

-- name: schema_version
SELECT version, dirty FROM schema_migrations;

-- name: privileges
-- One row for each thing that the data plane's role must not be able to do; one without any where there is none.
WITH excess (what) AS (
    SELECT 'is superuser' FROM pg_roles WHERE rolname = current_user AND rolsuper
    UNION ALL
    SELECT 'may create roles' FROM pg_roles WHERE rolname = current_user AND rolcreaterole
    UNION ALL
    SELECT 'may create databases' FROM pg_roles WHERE rolname = current_user AND rolcreatedb
    UNION ALL
    SELECT 'bypasses row security' FROM pg_roles WHERE rolname = current_user AND rolbypassrls
    UNION ALL
    SELECT 'owns ' || n.nspname || '.' || c.relname
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname IN ('tollgate', 'ledger') AND c.relkind IN ('r', 'p', 'v') AND pg_has_role(c.relowner, 'USAGE')
    UNION ALL
    SELECT 'may write tollgate.' || c.relname
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'tollgate' AND c.relname IN (
        'organizations', 'teams', 'users', 'memberships', 'virtual_keys', 'key_secrets', 'providers', 'models', 'model_targets',
        'targets', 'limits', 'price_versions', 'price_units', 'audit_log', 'config_state', 'secret_checks'
    ) AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
)
SELECT current_user::text AS role, coalesce(e.what, '') AS excess
FROM (SELECT 1) AS always
LEFT JOIN excess AS e ON true;

-- name: migration_lock_wait
SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout';

-- name: migration_done
-- Goes behind the statements of a step, into its transaction.
UPDATE schema_migrations SET dirty = false;
