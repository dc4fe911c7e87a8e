-- The present state of meters. What it means is worked out by the package meter, as for admissions.

-- name: meter_levels
-- The newest window that has begun, since the window of now may have no row yet.
SELECT statement_timestamp() AS now, l.amount, coalesce(l.burst, 0) AS burst, l.mode, q.subject,
    m.window_start, coalesce(m.level, 0) AS level, m.refilled_at, coalesce(m.spent, 0) AS spent,
    coalesce(m.held, 0) AS held, coalesce(m.carried, 0) AS carried
FROM unnest(@limits::bigint[], @subjects::bigint[]) WITH ORDINALITY AS q (limit_id, subject, position)
JOIN tollgate.limits AS l ON l.id = q.limit_id
LEFT JOIN LATERAL (
    SELECT * FROM ledger.meters AS m
    WHERE m.limit_id = q.limit_id AND m.subject = q.subject AND m.window_start <= statement_timestamp()
    ORDER BY m.window_start DESC
    LIMIT 1
) AS m ON true
ORDER BY q.position;

-- name: meter_members
-- Buckets by what they lack now of their capacity, slots by what is held, budgets by what is used in the newest window.
SELECT statement_timestamp() AS now, l.amount, coalesce(l.burst, 0) AS burst, l.mode, m.subject,
    m.window_start, m.level, m.refilled_at, m.spent, m.held, m.carried,
    coalesce(CASE l.scope_type
        WHEN 'model' THEN (SELECT x.public_id FROM tollgate.models AS x WHERE x.id = m.subject)
        WHEN 'target' THEN (SELECT x.public_id FROM tollgate.targets AS x WHERE x.id = m.subject)
        WHEN 'organization' THEN (SELECT x.public_id FROM tollgate.organizations AS x WHERE x.id = m.subject)
        WHEN 'team' THEN (SELECT x.public_id FROM tollgate.teams AS x WHERE x.id = m.subject)
        WHEN 'key' THEN (SELECT x.public_id FROM tollgate.virtual_keys AS x WHERE x.id = m.subject)
        WHEN 'user' THEN (SELECT x.public_id FROM tollgate.users AS x WHERE x.id = m.subject)
        ELSE (SELECT x.name FROM tollgate.end_users AS x WHERE x.id = m.subject)
    END, '') AS member_id,
    coalesce(CASE l.scope_type
        WHEN 'model' THEN (SELECT x.name FROM tollgate.models AS x WHERE x.id = m.subject)
        WHEN 'target' THEN (SELECT x.upstream_model FROM tollgate.targets AS x WHERE x.id = m.subject)
        WHEN 'organization' THEN (SELECT x.name FROM tollgate.organizations AS x WHERE x.id = m.subject)
        WHEN 'team' THEN (SELECT x.name FROM tollgate.teams AS x WHERE x.id = m.subject)
        WHEN 'key' THEN (SELECT x.name FROM tollgate.virtual_keys AS x WHERE x.id = m.subject)
        WHEN 'user' THEN (SELECT x.name FROM tollgate.users AS x WHERE x.id = m.subject)
        ELSE (SELECT x.name FROM tollgate.end_users AS x WHERE x.id = m.subject)
    END, '') AS member_name
FROM (
    SELECT DISTINCT ON (m.subject) m.*
    FROM ledger.meters AS m
    WHERE m.limit_id = @limit::bigint AND m.window_start <= statement_timestamp()
    ORDER BY m.subject, m.window_start DESC
) AS m
JOIN tollgate.limits AS l ON l.id = m.limit_id
ORDER BY
    CASE
        WHEN l.kind <> 'rate' THEN m.spent::numeric + m.held + m.carried
        WHEN m.refilled_at = '-infinity' THEN 0
        ELSE coalesce(l.burst, 0)::numeric * ledger.ticks(l.metric, l.per_seconds)
            - least(coalesce(l.burst, 0)::numeric * ledger.ticks(l.metric, l.per_seconds),
                m.level + coalesce(l.amount, 0) * floor(
                    greatest(extract(epoch FROM statement_timestamp() - nullif(m.refilled_at, '-infinity')), 0)
                    * ledger.ticks(l.metric, l.per_seconds) / l.per_seconds))
    END DESC,
    m.subject
LIMIT @count::bigint;
