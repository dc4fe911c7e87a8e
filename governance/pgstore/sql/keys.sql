-- name: keys_read
-- The hint shows the newest secret.
SELECT k.id AS num, k.public_id AS id, k.version, k.created_at, k.updated_at, k.deleted_at,
    o.id AS organization_num, o.public_id AS organization_id, o.name AS organization_name,
    coalesce(t.id, 0) AS team_num, coalesce(t.public_id, '') AS team_id, coalesce(t.name, '') AS team_name,
    coalesce(u.id, 0) AS user_num, coalesce(u.public_id, '') AS user_id, coalesce(u.name, '') AS user_name,
    k.name, k.models, k.expires_at, k.blocked, k.revoked_at, coalesce(s.hint, '') AS hint, k.last_used_at,
    coalesce(k.budget_status, 0) AS budget_status
FROM tollgate.virtual_keys AS k
JOIN tollgate.organizations AS o ON o.id = k.organization_id
LEFT JOIN tollgate.teams AS t ON t.id = k.team_id
LEFT JOIN tollgate.users AS u ON u.id = k.user_id
LEFT JOIN LATERAL (
    SELECT 'sk-tg-' || left(ks.public_id, 4) || '…' || ks.last4 AS hint
    FROM tollgate.key_secrets AS ks
    WHERE ks.key_id = k.id
    ORDER BY ks.created_at DESC
    LIMIT 1
) AS s ON true
WHERE (@id::text = '' OR k.public_id = @id::text)
  AND (@num::bigint = 0 OR k.id = @num::bigint)
  AND (@bound::bigint = 0 OR k.organization_id = @bound::bigint)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@team::text = '' OR t.public_id = @team::text)
  AND (@scope_id::text = '' OR u.public_id = @scope_id::text)
  AND (@name::text = '' OR k.name = @name::text)
  AND (@deleted::boolean OR k.deleted_at IS NULL AND o.deleted_at IS NULL AND t.deleted_at IS NULL)
  AND k.id > @after::bigint
ORDER BY k.id
LIMIT @count::bigint;

-- name: keys_insert
INSERT INTO tollgate.virtual_keys (public_id, organization_id, team_id, user_id, name, models, expires_at, blocked, budget_status)
VALUES (
    @public_id::text, @organization_num::bigint, @team_num::bigint, @user_num::bigint, @name::text, @models::text[],
    @expires_at::timestamptz, @blocked::boolean, @budget_status::smallint
)
RETURNING id;

-- name: keys_update
UPDATE tollgate.virtual_keys
SET name = @name::text, models = @models::text[], expires_at = @expires_at::timestamptz, blocked = @blocked::boolean,
    budget_status = @budget_status::smallint, version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: keys_delete
UPDATE tollgate.virtual_keys SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: keys_revoke
UPDATE tollgate.virtual_keys SET revoked_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND revoked_at IS NULL;

-- name: keys_touch_version
UPDATE tollgate.virtual_keys SET version = version + 1, updated_at = clock_timestamp() WHERE id = @num::bigint;

-- name: keys_touch
-- At most one write a minute and key; sorted and without waiting, since nobody is to wait for statistics.
UPDATE tollgate.virtual_keys
SET last_used_at = clock_timestamp()
WHERE id IN (
    SELECT id FROM tollgate.virtual_keys
    WHERE id = ANY (@nums::bigint[]) AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
);

-- name: key_secrets_insert
INSERT INTO tollgate.key_secrets (public_id, key_id, hash, pepper_id, last4)
VALUES (@public_id::text, @num::bigint, @hash::bytea, @pepper_id::text, @last4::text);

-- name: key_secrets_end
-- A secret that was to end earlier does.
UPDATE tollgate.key_secrets
SET expires_at = least(expires_at, clock_timestamp() + @grace::interval)
WHERE key_id = @num::bigint;

-- name: key_find
-- All that can stop a key, in one row. A deleted user stops it like a blocked one.
SELECT k.id AS num, k.public_id AS id, k.version, k.created_at, k.updated_at, k.deleted_at,
    o.id AS organization_num, o.public_id AS organization_id, o.name AS organization_name,
    coalesce(t.id, 0) AS team_num, coalesce(t.public_id, '') AS team_id, coalesce(t.name, '') AS team_name,
    coalesce(u.id, 0) AS user_num, coalesce(u.public_id, '') AS user_id, coalesce(u.name, '') AS user_name,
    k.name, k.models, k.expires_at, k.blocked, k.revoked_at,
    'sk-tg-' || left(s.public_id, 4) || '…' || s.last4 AS hint, k.last_used_at,
    coalesce(k.budget_status, 0) AS budget_status,
    s.public_id AS secret_id, s.hash, s.pepper_id, s.last4, s.expires_at AS secret_expires_at,
    t.models AS team_models, coalesce(k.budget_status, o.budget_status) AS status, o.require,
    (SELECT c.version FROM tollgate.config_state AS c) AS config_version,
    CASE
        WHEN o.blocked THEN 'organization'
        WHEN t.blocked THEN 'team'
        WHEN u.blocked OR u.deleted_at IS NOT NULL THEN 'user'
        ELSE ''
    END AS blocked_by
FROM tollgate.key_secrets AS s
JOIN tollgate.virtual_keys AS k ON k.id = s.key_id
JOIN tollgate.organizations AS o ON o.id = k.organization_id
LEFT JOIN tollgate.teams AS t ON t.id = k.team_id
LEFT JOIN tollgate.users AS u ON u.id = k.user_id
WHERE s.public_id = @public_id::text
  AND (s.expires_at IS NULL OR s.expires_at > clock_timestamp())
  AND k.deleted_at IS NULL AND o.deleted_at IS NULL AND t.deleted_at IS NULL;

-- name: keys_rehash
-- In the order of their names, so that replicas lock rows in the same order. A secret that was replaced meanwhile stays.
SELECT count(*) FILTER (WHERE tollgate.rehash_secret(r.public_id, r.was, r.hash, r.pepper_id))
FROM (
    SELECT u.public_id, u.was, u.hash, u.pepper_id
    FROM unnest(@public_ids::text[], @was::bytea[], @hashes::bytea[], @pepper_ids::text[]) AS u (public_id, was, hash, pepper_id)
    ORDER BY u.public_id
) AS r;
