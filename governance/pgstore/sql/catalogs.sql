-- name: config_listen
LISTEN tollgate_config;

-- name: limits_in_force
-- Those that count now: all, or of the given ones.
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
WHERE l.deleted_at IS NULL AND o.deleted_at IS NULL
  AND (@nums::bigint[] IS NULL OR l.id = ANY (@nums::bigint[]))
  AND (l.starts_at IS NULL OR l.starts_at <= transaction_timestamp())
  AND (l.expires_at IS NULL OR l.expires_at > transaction_timestamp())
ORDER BY l.id;

-- name: prices_in_force
-- The newest version that has begun, of what some target uses, or one of the given ones.
SELECT v.id AS num, v.public_id AS id, v.provider, v.upstream_model, v.effective_from, v.free, v.source, v.created_at,
    u.service_tiers, u.from_inputs, u.units, u.per_millions
FROM (
    SELECT DISTINCT coalesce(nullif(p.price_provider, ''), p.name) AS provider, t.upstream_model
    FROM tollgate.targets AS t
    JOIN tollgate.providers AS p ON p.id = t.provider_id
    WHERE p.deleted_at IS NULL AND (@targets::bigint[] IS NULL OR t.id = ANY (@targets::bigint[]))
) AS used
CROSS JOIN LATERAL (
    SELECT *
    FROM tollgate.price_versions AS v
    WHERE v.provider = used.provider AND v.upstream_model = used.upstream_model AND v.effective_from <= transaction_timestamp()
    ORDER BY v.effective_from DESC
    LIMIT 1
) AS v
CROSS JOIN LATERAL (
    SELECT array_agg(service_tier ORDER BY service_tier, from_input, unit) AS service_tiers,
        array_agg(from_input ORDER BY service_tier, from_input, unit) AS from_inputs,
        array_agg(unit::bigint ORDER BY service_tier, from_input, unit) AS units,
        array_agg(per_million ORDER BY service_tier, from_input, unit) AS per_millions
    FROM tollgate.price_units
    WHERE price_id = v.id
) AS u;

-- name: config_due
-- The next instant at which a price begins, or a limit begins or ends.
SELECT min(at)
FROM (
    SELECT min(effective_from) AS at FROM tollgate.price_versions WHERE effective_from > transaction_timestamp()
    UNION ALL
    SELECT min(starts_at) FROM tollgate.limits WHERE starts_at > transaction_timestamp() AND deleted_at IS NULL
    UNION ALL
    SELECT min(expires_at) FROM tollgate.limits WHERE expires_at > transaction_timestamp() AND deleted_at IS NULL
) AS due;
