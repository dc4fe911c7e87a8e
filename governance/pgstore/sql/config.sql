-- Versions of the configuration and the record of changes.

-- name: config_raise
-- First statement of every change: its row lock makes changes follow each other.
UPDATE tollgate.config_state SET version = version + 1 RETURNING version;

-- name: config_version
-- Polled by every gateway, so it is one row of one page.
SELECT version, clock_timestamp() AS now FROM tollgate.config_state;

-- name: changes_record
-- Last statement of every change. Old entries go, since who has missed so many reads everything anew.
WITH changed AS (
    INSERT INTO tollgate.config_changes (version, resource, resource_id)
    SELECT @version::bigint, c.kind, c.num FROM unnest(@kinds::text[], @nums::bigint[]) AS c (kind, num)
), forgotten AS (
    DELETE FROM tollgate.config_changes WHERE version <= @version::bigint - 10000
), audited AS (
    INSERT INTO tollgate.audit_log (
        actor_kind, actor_id, actor_name, ip, request_id, reason,
        action, resource, resource_id, organization_id, before, after
    )
    SELECT @actor_kind::text, @actor_id::text, @actor_name::text, @ip::text, @request_id::text, @reason::text,
        a.action, a.resource, a.id, nullif(a.organization, 0), a.before::jsonb, a.after::jsonb
    FROM unnest(
        @actions::text[], @resources::text[], @ids::text[], @organizations::bigint[], @befores::text[], @afters::text[]
    ) AS a (action, resource, id, organization, before, after)
)
SELECT pg_notify('tollgate_config', @version::bigint::text);

-- name: changes_since
-- What changed behind a version that was seen, up to the one that was loaded.
SELECT DISTINCT resource AS kind, resource_id AS num
FROM tollgate.config_changes
WHERE version > @seen::bigint AND version <= @loaded::bigint;

-- name: changes_oldest
-- The oldest version whose changes are still listed; 0: none is.
SELECT coalesce(min(version), 0) FROM tollgate.config_changes;

-- name: audit_rows
-- Newest first.
SELECT a.id AS num, a.at, a.actor_kind, a.actor_id, a.actor_name, a.ip, a.request_id, a.reason, a.action, a.resource,
    a.resource_id, coalesce(o.public_id, '') AS organization_id, a.before, a.after
FROM tollgate.audit_log AS a
LEFT JOIN tollgate.organizations AS o ON o.id = a.organization_id
WHERE (@bound::bigint = 0 OR a.organization_id = @bound::bigint)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@resource::text = '' OR a.resource = @resource::text)
  AND (@resource_id::text = '' OR a.resource_id = @resource_id::text)
  AND (@actor_id::text = '' OR a.actor_id = @actor_id::text)
  AND (@from::timestamptz IS NULL OR a.at >= @from::timestamptz)
  AND (@to::timestamptz IS NULL OR a.at < @to::timestamptz)
  AND (@after::bigint = 0 OR a.id < @after::bigint)
ORDER BY a.id DESC
LIMIT @count::bigint;

-- name: secret_checks
SELECT kind, id, proof FROM tollgate.secret_checks;

-- name: secrets_in_use
-- The pepper of every secret that can still log in, and the encryption key of every credential and every webhook's
-- secret. What is sealed begins with its version, the length of its key's id, and that id.
SELECT 'pepper' AS kind, s.pepper_id AS id
FROM tollgate.key_secrets AS s
JOIN tollgate.virtual_keys AS k ON k.id = s.key_id
WHERE k.deleted_at IS NULL AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
  AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp())
UNION
SELECT 'encryption', convert_from(substring(p.credential FROM 3 FOR get_byte(p.credential, 1)), 'UTF8')
FROM tollgate.providers AS p
WHERE p.deleted_at IS NULL AND octet_length(p.credential) > 2
UNION
SELECT 'encryption', convert_from(substring(g.secret FROM 3 FOR get_byte(g.secret, 1)), 'UTF8')
FROM tollgate.guardrails AS g
WHERE g.deleted_at IS NULL AND octet_length(g.secret) > 2
ORDER BY 1, 2;

-- name: secret_check_add
INSERT INTO tollgate.secret_checks (kind, id, proof) VALUES (@kind::text, @id::text, @proof::bytea)
ON CONFLICT (kind, id) DO NOTHING;

-- name: secret_check_may_add
SELECT has_table_privilege('tollgate.secret_checks', 'INSERT');
