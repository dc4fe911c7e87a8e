-- name: limits_read
-- The subject's id is "*" where each member has a meter of its own, and the name of an end user.
SELECT l.id AS num, l.public_id AS id, l.version, l.created_at, l.updated_at, l.deleted_at,
    coalesce(l.organization_id, 0) AS organization_num, coalesce(o.public_id, '') AS organization_id,
    coalesce(o.name, '') AS organization_name,
    l.scope_type, coalesce(l.scope_id, 0) AS subject_num,
    CASE WHEN l.scope_id IS NULL THEN '*' ELSE coalesce(s.public_id, '') END AS subject_id, coalesce(s.name, '') AS subject_name,
    coalesce(l.within_type, '') AS within_type, coalesce(l.within_id, 0) AS within_num,
    coalesce(w.public_id, '') AS within_id, coalesce(w.name, '') AS within_name,
    l.models, l.routes, l.kind, l.metric, l.amount, coalesce(l.per_seconds, 0)::bigint AS per_seconds,
    coalesce(l.burst, 0) AS burst, coalesce(l.window_type, '') AS window_type, coalesce(l.window_period, '') AS window_period,
    coalesce(l.window_zone, '') AS window_zone, coalesce(l.window_seconds, 0) AS window_seconds, l.window_anchor,
    l.carry_debt, l.reserve, l.enforcement, l.mode, l.thresholds, l.starts_at, l.expires_at, l.reason
FROM tollgate.limits AS l
LEFT JOIN tollgate.organizations AS o ON o.id = l.organization_id
LEFT JOIN tollgate.subjects AS s ON s.type = l.scope_type AND s.id = l.scope_id
LEFT JOIN tollgate.subjects AS w ON w.type = l.within_type AND w.id = l.within_id
WHERE (@id::text = '' OR l.public_id = @id::text)
  AND (@num::bigint = 0 OR l.id = @num::bigint)
  AND (@bound::bigint = 0 OR l.organization_id = @bound::bigint)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@scope_type::text = '' OR l.scope_type = @scope_type::text)
  AND (@scope_id::text = '' OR CASE WHEN l.scope_id IS NULL THEN '*' ELSE s.public_id END = @scope_id::text)
  AND (@team::text = '' OR l.scope_type = 'team' AND s.public_id = @team::text)
  AND (@deleted::boolean OR l.deleted_at IS NULL AND o.deleted_at IS NULL)
  AND l.id > @after::bigint
ORDER BY l.id
LIMIT @count::bigint;

-- name: limits_twin
-- The limit of the same identity, whatever became of it. One that has expired is no longer live.
SELECT id AS num, deleted_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()) AS live
FROM tollgate.limits
WHERE coalesce(organization_id, 0) = coalesce(@organization_num::bigint, 0)
  AND scope_type = @scope_type::text AND coalesce(scope_id, 0) = coalesce(@subject_num::bigint, 0)
  AND coalesce(within_type, '') = coalesce(@within_type::text, '')
  AND coalesce(within_id, 0) = coalesce(@within_num::bigint, 0)
  AND models = @models::text[] AND routes = @routes::text[] AND kind = @kind::text AND metric = @metric::text
  AND coalesce(per_seconds, 0) = coalesce(@per_seconds::int, 0)
  AND coalesce(window_type, '') = coalesce(@window_type::text, '')
  AND coalesce(window_period, '') = coalesce(@window_period::text, '')
  AND coalesce(window_zone, '') = coalesce(@window_zone::text, '')
  AND coalesce(window_seconds, 0) = coalesce(@window_seconds::bigint, 0);

-- name: limits_insert
-- A fixed window without an anchor begins with its limit.
INSERT INTO tollgate.limits (
    public_id, organization_id, scope_type, scope_id, within_type, within_id, models, routes, kind, metric, amount,
    per_seconds, burst, window_type, window_period, window_zone, window_seconds, window_anchor, carry_debt, reserve,
    enforcement, mode, thresholds, starts_at, expires_at, reason
)
VALUES (
    @public_id::text, @organization_num::bigint, @scope_type::text, @subject_num::bigint, @within_type::text,
    @within_num::bigint, @models::text[], @routes::text[], @kind::text, @metric::text, @amount::bigint,
    @per_seconds::int, @burst::bigint, @window_type::text, @window_period::text, @window_zone::text,
    @window_seconds::bigint,
    coalesce(@window_anchor::timestamptz, CASE WHEN @window_type::text = 'fixed' THEN clock_timestamp() END),
    @carry_debt::boolean, @reserve::text, @enforcement::text, @mode::text, @thresholds::int[],
    @starts_at::timestamptz, @expires_at::timestamptz, @reason::text
)
RETURNING id;

-- name: limits_update
-- Brings a deleted limit back, too.
UPDATE tollgate.limits
SET amount = @amount::bigint, burst = @burst::bigint, reserve = @reserve::text, enforcement = @enforcement::text,
    mode = @mode::text, thresholds = @thresholds::int[], starts_at = @starts_at::timestamptz,
    expires_at = @expires_at::timestamptz, reason = @reason::text,
    deleted_at = NULL, version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint;

-- name: limits_delete
UPDATE tollgate.limits SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: limits_budget_in_chain
-- Whether a team (key 0) or a key would meet a limited money budget that is enforced.
SELECT EXISTS (
    SELECT FROM tollgate.limits AS l
    WHERE l.deleted_at IS NULL AND l.kind = 'budget' AND l.metric = 'cost' AND l.mode = 'enforce' AND l.amount IS NOT NULL
      AND (l.expires_at IS NULL OR l.expires_at > clock_timestamp())
      AND (l.organization_id IS NULL OR l.organization_id = @organization::bigint)
      AND models = '{}' AND routes = '{}'
      AND CASE l.scope_type
          WHEN 'organization' THEN l.scope_id IS NULL OR l.scope_id = @organization::bigint
          WHEN 'team' THEN @team::bigint <> 0 AND (l.scope_id IS NULL OR l.scope_id = @team::bigint)
          WHEN 'key' THEN @key::bigint <> 0 AND (l.scope_id IS NULL OR l.scope_id = @key::bigint)
          WHEN 'user' THEN @user::bigint <> 0 AND (l.scope_id IS NULL OR l.scope_id = @user::bigint)
          ELSE false
      END
      AND CASE l.within_type
          WHEN 'organization' THEN l.within_id = @organization::bigint
          WHEN 'team' THEN l.within_id = @team::bigint
          WHEN 'key' THEN l.within_id = @key::bigint
          WHEN 'user' THEN l.within_id = @user::bigint
          ELSE true
      END
);

-- name: limits_budget_is_last
-- Whether some team or key, of an organization that requires a budget, has the given limit in its chain and no other limited
-- money budget that is enforced.
SELECT EXISTS (
    SELECT FROM tollgate.limits AS b
    JOIN tollgate.organizations AS o
        ON o.require_budget AND o.deleted_at IS NULL AND o.id = coalesce(b.organization_id, o.id)
    CROSS JOIN LATERAL (
        SELECT t.id AS team, 0::bigint AS key, 0::bigint AS user_num
        FROM tollgate.teams AS t
        WHERE t.organization_id = o.id AND t.deleted_at IS NULL
        UNION ALL
        SELECT coalesce(k.team_id, 0), k.id, coalesce(k.user_id, 0)
        FROM tollgate.virtual_keys AS k
        LEFT JOIN tollgate.teams AS t ON t.id = k.team_id
        WHERE k.organization_id = o.id AND k.deleted_at IS NULL AND k.revoked_at IS NULL AND t.deleted_at IS NULL
    ) AS m
    CROSS JOIN LATERAL (
        VALUES ('organization', o.id), ('team', m.team), ('key', m.key), ('user', m.user_num)
    ) AS c (type, num)
    WHERE b.id = @num::bigint AND c.num <> 0 AND c.type = b.scope_type AND c.num = coalesce(b.scope_id, c.num)
      AND CASE b.within_type
          WHEN 'organization' THEN b.within_id = o.id
          WHEN 'team' THEN b.within_id = m.team
          WHEN 'key' THEN b.within_id = m.key
          WHEN 'user' THEN b.within_id = m.user_num
          ELSE true
      END
      AND NOT EXISTS (
          SELECT FROM tollgate.limits AS l
          WHERE l.id <> b.id AND l.deleted_at IS NULL AND l.kind = 'budget' AND l.metric = 'cost' AND l.mode = 'enforce'
            AND l.amount IS NOT NULL AND (l.expires_at IS NULL OR l.expires_at > clock_timestamp())
            AND (l.organization_id IS NULL OR l.organization_id = o.id) AND l.models = '{}' AND l.routes = '{}'
            AND (
                l.scope_type = 'organization' AND (l.scope_id IS NULL OR l.scope_id = o.id)
                OR l.scope_type = 'team' AND m.team <> 0 AND (l.scope_id IS NULL OR l.scope_id = m.team)
                OR l.scope_type = 'key' AND m.key <> 0 AND (l.scope_id IS NULL OR l.scope_id = m.key)
                OR l.scope_type = 'user' AND m.user_num <> 0 AND (l.scope_id IS NULL OR l.scope_id = m.user_num)
            )
            AND CASE l.within_type
                WHEN 'organization' THEN l.within_id = o.id
                WHEN 'team' THEN l.within_id = m.team
                WHEN 'key' THEN l.within_id = m.key
                WHEN 'user' THEN l.within_id = m.user_num
                ELSE true
            END
      )
);
