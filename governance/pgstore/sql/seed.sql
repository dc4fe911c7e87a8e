-- A ledger at size for development: whole books, made by sets. Nothing here runs beside real tenants.

-- name: seed_foreign
-- Whether rows are here that no seed has made.
SELECT EXISTS (
    SELECT FROM ledger.days AS d
    WHERE NOT EXISTS (
        SELECT FROM tollgate.organizations AS o WHERE o.id = d.organization_id AND starts_with(o.name, 'Seeded organization '))
) OR EXISTS (
    SELECT FROM ledger.rows AS r
    WHERE r.seq > (SELECT s.floor_seq FROM ledger.seal_mark AS s)
      AND NOT EXISTS (
        SELECT FROM tollgate.organizations AS o WHERE o.id = r.organization_id AND starts_with(o.name, 'Seeded organization '))
);

-- name: seed_accounts
-- 20 organizations of 5 teams of 10 keys, 3 providers with 2 targets each, and for each key and organization a rate and a
-- budget that nothing fills. They are older than a day, so that no check takes them for young.
WITH o AS (
    INSERT INTO tollgate.organizations (public_id, name)
    SELECT 'org_' || left(md5(random()::text), 12), 'Seeded organization ' || n FROM generate_series(1, 20) AS n
    RETURNING id
), t AS (
    INSERT INTO tollgate.teams (public_id, organization_id, name)
    SELECT 'team_' || left(md5(random()::text), 12), o.id, 'Team ' || n FROM o CROSS JOIN generate_series(1, 5) AS n
    RETURNING id, organization_id
), k AS (
    INSERT INTO tollgate.virtual_keys (public_id, organization_id, team_id, name)
    SELECT 'key_' || left(md5(random()::text), 12), t.organization_id, t.id, 'Key ' || n FROM t CROSS JOIN generate_series(1, 10) AS n
    RETURNING id, organization_id
), l AS (
    INSERT INTO tollgate.limits (public_id, organization_id, scope_type, scope_id, kind, metric, amount, per_seconds, burst,
        window_type, window_period, created_at, updated_at)
    SELECT 'lim_' || left(md5(random()::text), 12), s.organization_id, s.scope, s.id, x.kind, x.metric, 1000000000000000,
        NULL::int, NULL::bigint, x.window_type, x.period, clock_timestamp() - interval '400 days', clock_timestamp() - interval '400 days'
    FROM (SELECT 'key' AS scope, id, organization_id FROM k UNION ALL SELECT 'organization', id, id FROM o) AS s
    JOIN (VALUES ('key', 'budget', 'cost', 'calendar', 'month'), ('organization', 'budget', 'tokens', 'total', NULL))
        AS x (scope, kind, metric, window_type, period) ON x.scope = s.scope
    UNION ALL
    SELECT 'lim_' || left(md5(random()::text), 12), s.organization_id, s.scope, s.id, 'rate', x.metric, 1000000000, 60, 1000000000,
        NULL, NULL, clock_timestamp() - interval '400 days', clock_timestamp() - interval '400 days'
    FROM (SELECT 'key' AS scope, id, organization_id FROM k UNION ALL SELECT 'organization', id, id FROM o) AS s
    JOIN (VALUES ('key', 'requests'), ('organization', 'tokens')) AS x (scope, metric) ON x.scope = s.scope
), p AS (
    INSERT INTO tollgate.providers (public_id, name, kind, base_url)
    SELECT 'prov_' || left(md5(random()::text), 12), 'seeded-' || n, 'openai', 'http://127.0.0.1:9' FROM generate_series(1, 3) AS n
    RETURNING id, name
)
INSERT INTO tollgate.targets (public_id, provider_id, upstream_model)
SELECT 'tgt_' || left(md5(random()::text), 12), p.id, p.name || '-model-' || n FROM p CROSS JOIN generate_series(1, 2) AS n;

-- name: seed_exists
SELECT EXISTS (SELECT FROM tollgate.organizations AS o WHERE o.name = 'Seeded organization 1');

-- name: seed_since
SELECT clock_timestamp() - @span::interval;

-- name: seed_months
SELECT coalesce(sum(ledger.add_month(m::date)), 0)::int
FROM generate_series(date_trunc('month', @since::timestamptz AT TIME ZONE 'UTC'), clock_timestamp() AT TIME ZONE 'UTC', interval '1 month') AS m;

-- name: seed_asynchronous
-- A crash may cost the newest rows, and their meters with them.
SELECT set_config('synchronous_commit', 'off', true), set_config('work_mem', '128MB', true);

-- name: seed_rows
-- Settled usage rows number @first to @last of @total, spread evenly over the time from @since until now, with what they
-- book on windows. Few keys do most of the work, as everywhere, and
-- each uses one model and at times another.
WITH keys AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY k.id) - 1 AS n, k.id, k.public_id, k.name, t.id AS team_id, t.public_id AS team_public_id,
        t.name AS team_name, o.id AS organization_id, o.public_id AS organization_public_id, o.name AS organization_name,
        kb.id AS key_budget, kr.id AS key_rate, ob.id AS organization_budget, orr.id AS organization_rate
    FROM tollgate.organizations AS o
    JOIN tollgate.teams AS t ON t.organization_id = o.id
    JOIN tollgate.virtual_keys AS k ON k.team_id = t.id
    JOIN tollgate.limits AS kb ON kb.scope_type = 'key' AND kb.scope_id = k.id AND kb.kind = 'budget'
    JOIN tollgate.limits AS kr ON kr.scope_type = 'key' AND kr.scope_id = k.id AND kr.kind = 'rate'
    JOIN tollgate.limits AS ob ON ob.scope_type = 'organization' AND ob.scope_id = o.id AND ob.kind = 'budget'
    JOIN tollgate.limits AS orr ON orr.scope_type = 'organization' AND orr.scope_id = o.id AND orr.kind = 'rate'
    WHERE starts_with(o.name, 'Seeded organization ')
), targets AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY t.id) - 1 AS n, t.id, t.upstream_model, p.name AS provider
    FROM tollgate.targets AS t
    JOIN tollgate.providers AS p ON p.id = t.provider_id
    WHERE starts_with(p.name, 'seeded-')
), drawn AS MATERIALIZED (
    SELECT i, floor(power(random(), 3) * (SELECT count(*) FROM keys))::bigint AS key_n,
        CASE WHEN random() < 0.2 THEN 1 ELSE 0 END AS other,
        100 + floor(power(random(), 2) * 4000)::bigint AS input, 20 + floor(power(random(), 2) * 800)::bigint AS output,
        since + (until - since) * ((i - 1)::float8 / @total::bigint) AS at,
        1000 + floor(random() * 2000)::bigint AS took_ms, md5(random()::text || i) AS tail
    FROM (SELECT @since::timestamptz AS since, clock_timestamp() - interval '5 seconds' AS until OFFSET 0) AS s
    CROSS JOIN generate_series(@first::bigint, @last::bigint) AS i
), made AS (
    INSERT INTO ledger.rows (attempt_id, kind, epoch, request_id, attempt,
        organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
        key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
        route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
        outcome, usage_source, quantities, unit_prices, cost,
        leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved, leg_actual, process_id, admitted_at, settled_at)
    SELECT x.id, 'usage', (SELECT s.epoch FROM ledger.state AS s), x.id, 1,
        k.organization_id, k.organization_public_id, k.organization_name, k.team_id, k.team_public_id, k.team_name,
        k.id, k.public_id, k.name, 0, '', '', 0,
        'chat.completions', 0, 'model-' || g.n, g.provider, g.id, g.upstream_model, 0, false,
        'complete', 'provider', ARRAY[d.input, 0, 0, 0, 0, 0, d.output, 0, 0, 0, 0, 1, 0],
        ARRAY[150000000 * (g.n + 1), 0, 0, 0, 0, 0, 600000000 * (g.n + 1), 0, 0, 0, 0, 0, 0], c.cost,
        ARRAY[k.organization_rate, k.organization_budget, k.key_rate, k.key_budget],
        ARRAY[k.organization_id, k.organization_id, k.id, k.id],
        ARRAY['-infinity', '-infinity', '-infinity', date_trunc('month', d.at, 'UTC')],
        ARRAY[2, 6, 1, 9]::smallint[], ARRAY[d.input + 800, d.input + 800, 1, c.cost * 2],
        ARRAY[d.input + d.output, d.input + d.output, 1, c.cost], 0, d.at, d.at + d.took_ms * interval '1 millisecond'
    FROM drawn AS d
    JOIN keys AS k ON k.n = d.key_n
    JOIN targets AS g ON g.n = (k.n * 7 + d.other) % (SELECT count(*) FROM targets)
    CROSS JOIN LATERAL (
        SELECT overlay(overlay(ledger.id_at(d.at)::text PLACING '7' || left(d.tail, 3) || '-8' || substr(d.tail, 4, 3) FROM 15 FOR 9)
            PLACING substr(d.tail, 7, 12) FROM 25 FOR 12)::uuid AS id
    ) AS x
    CROSS JOIN LATERAL (
        SELECT audit.half_even((d.input * 150000000::numeric + d.output * 600000000::numeric) * (g.n + 1))::bigint AS cost
    ) AS c
    ORDER BY d.i
    RETURNING leg_limits, leg_subjects, leg_windows, leg_classes, leg_actual
)
INSERT INTO ledger.meters AS m (limit_id, subject, window_start, spent)
SELECT g.limit_id, g.subject, g.window_start, sum(g.actual)
FROM made AS r
CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes, r.leg_actual)
    AS g (limit_id, subject, window_start, class, actual)
WHERE g.class BETWEEN 6 AND 9
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
ON CONFLICT (limit_id, subject, window_start) DO UPDATE SET spent = m.spent + excluded.spent;
