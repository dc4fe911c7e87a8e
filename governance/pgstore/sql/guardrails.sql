-- name: guardrails_read
-- The platform's are in force for an organization too, but they are not its to see.
SELECT g.id AS num, g.public_id AS id, g.version, g.created_at, g.updated_at, g.deleted_at,
    coalesce(g.organization_id, 0) AS organization_num, coalesce(o.public_id, '') AS organization_id,
    coalesce(o.name, '') AS organization_name,
    coalesce(g.team_id, 0) AS team_num, coalesce(t.public_id, '') AS team_id, coalesce(t.name, '') AS team_name,
    coalesce(g.key_id, 0) AS key_num, coalesce(k.public_id, '') AS key_id, coalesce(k.name, '') AS key_name,
    g.name, g.models, g.stage, g.rule, g.action, g.allow_on_error, g.disabled, g.secret IS NOT NULL AS has_secret, g.secret
FROM tollgate.guardrails AS g
LEFT JOIN tollgate.organizations AS o ON o.id = g.organization_id
LEFT JOIN tollgate.teams AS t ON t.id = g.team_id
LEFT JOIN tollgate.virtual_keys AS k ON k.id = g.key_id
CROSS JOIN LATERAL (
    SELECT CASE
            WHEN g.key_id IS NOT NULL THEN 'key'
            WHEN g.team_id IS NOT NULL THEN 'team'
            WHEN g.organization_id IS NOT NULL THEN 'organization'
            ELSE 'platform'
        END AS type,
        coalesce(k.public_id, t.public_id, o.public_id, '') AS id
) AS scope
WHERE (@id::text = '' OR g.public_id = @id::text)
  AND (@num::bigint = 0 OR g.id = @num::bigint)
  AND (@bound::bigint = 0 OR g.organization_id = @bound::bigint)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@name::text = '' OR g.name = @name::text)
  AND (@scope_type::text = '' OR scope.type = @scope_type::text)
  AND (@scope_id::text = '' OR scope.id = @scope_id::text)
  AND (@deleted::boolean OR g.deleted_at IS NULL AND o.deleted_at IS NULL)
  AND g.id > @after::bigint
ORDER BY g.id
LIMIT @count::bigint;

-- name: guardrails_insert
INSERT INTO tollgate.guardrails (
    public_id, organization_id, team_id, key_id, name, models, stage, rule, action, allow_on_error, disabled, secret
)
VALUES (
    @public_id::text, @organization_num::bigint, @team_num::bigint, @key_num::bigint, @name::text, @models::text[],
    @stage::text, @rule::jsonb, @action::text, @allow_on_error::boolean, @disabled::boolean, @secret::bytea
)
RETURNING id;

-- name: guardrails_update
UPDATE tollgate.guardrails
SET name = @name::text, models = @models::text[], stage = @stage::text, rule = @rule::jsonb, action = @action::text,
    allow_on_error = @allow_on_error::boolean, disabled = @disabled::boolean, secret = @secret::bytea,
    version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: guardrails_delete
UPDATE tollgate.guardrails SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;
