-- What is not finally settled.

-- name: reservation_page
-- Oldest first. Both parts come in the order of their index.
WITH bound AS (
    SELECT CASE WHEN @organization::text = '' THEN 0
                ELSE coalesce((SELECT id FROM tollgate.organizations WHERE public_id = @organization::text), -1)
           END AS organization
), open AS (
    SELECT r.attempt_id, r.state, r.request_id, r.attempt,
        r.organization_id, r.organization_public_id, r.organization_name,
        r.team_id, r.team_public_id, r.team_name, r.key_id, r.key_public_id, r.key_name,
        r.user_id, r.user_public_id, r.user_name, r.end_user_id, r.route, r.model_id, r.model, r.provider, r.target_id,
        r.upstream_model, r.price_id, r.unpriced, r.quantities, r.unit_prices, r.cost,
        r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_reserved, '{}'::bigint[] AS leg_actual,
        r.admitted_at, r.expires_at, r.process_id
    FROM ledger.reservations AS r
    WHERE r.state = 'open' AND @state::text IN ('', 'open')
      AND r.attempt_id > @after_id::text::uuid AND r.attempt_id >= (SELECT low_water FROM ledger.state)
      AND (SELECT organization FROM bound) IN (0, r.organization_id)
    ORDER BY r.attempt_id
    LIMIT @count::bigint
), provisional AS (
    SELECT r.attempt_id, 'provisional' AS state, r.request_id, r.attempt,
        r.organization_id, r.organization_public_id, r.organization_name,
        r.team_id, r.team_public_id, r.team_name, r.key_id, r.key_public_id, r.key_name,
        r.user_id, r.user_public_id, r.user_name, r.end_user_id, r.route, r.model_id, r.model, r.provider, r.target_id,
        r.upstream_model, r.price_id, r.unpriced, r.quantities, r.unit_prices, r.cost,
        r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_reserved, r.leg_actual,
        r.admitted_at, NULL::timestamptz AS expires_at, r.process_id
    FROM ledger.rows AS r
    WHERE r.usage_source = 'reservation' AND r.kind IN ('usage', 'expiry') AND @state::text IN ('', 'provisional')
      AND r.attempt_id > @after_id::text::uuid
      AND (SELECT organization FROM bound) IN (0, r.organization_id)
      AND NOT EXISTS (SELECT FROM ledger.rows AS a WHERE a.attempt_id = r.attempt_id AND a.kind = 'late_adjustment')
    ORDER BY r.attempt_id
    LIMIT @count::bigint
)
SELECT x.attempt_id, x.state, x.request_id, x.attempt,
    x.organization_id, x.organization_public_id, x.organization_name,
    x.team_id, x.team_public_id, x.team_name, x.key_id, x.key_public_id, x.key_name,
    x.user_id, x.user_public_id, x.user_name, x.end_user_id, x.route, x.model_id, x.model, x.provider, x.target_id,
    x.upstream_model, x.price_id, x.unpriced, x.quantities, x.unit_prices, x.cost,
    x.leg_limits, x.leg_subjects, x.leg_windows, x.leg_reserved, x.leg_actual,
    x.admitted_at, x.expires_at, coalesce(p.node, '') AS process
FROM (SELECT * FROM open UNION ALL SELECT * FROM provisional) AS x
LEFT JOIN ledger.processes AS p ON p.id = x.process_id
ORDER BY x.attempt_id
LIMIT @count::bigint;
