-- Everything about one request.

-- name: receipt_rows
SELECT r.attempt_id, r.kind, r.settled_at, r.seq
FROM ledger.rows AS r
WHERE r.request_id = @request::text::uuid AND r.attempt_id >= @from_id::text::uuid
  AND (@organization::bigint = 0 OR r.organization_id = @organization::bigint)
ORDER BY r.attempt, r.settled_at, r.seq;

-- name: receipt_reservations
-- Reservations have no index by request. Their ids carry the time, and all attempts of a request begin within an hour of
-- it, so that a range of the primary key has them.
SELECT r.attempt_id, r.state, r.request_id, r.attempt,
    r.organization_id, r.organization_public_id, r.organization_name,
    r.team_id, r.team_public_id, r.team_name, r.key_id, r.key_public_id, r.key_name,
    r.user_id, r.user_public_id, r.user_name, r.end_user_id, r.route, r.model_id, r.model, r.provider, r.target_id,
    r.upstream_model, r.price_id, r.unpriced, r.quantities, r.unit_prices, r.cost,
    r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_reserved, '{}'::bigint[] AS leg_actual,
    coalesce(r.admitted_at, r.closed_at) AS admitted_at, r.expires_at, coalesce(p.node, '') AS process
FROM ledger.reservations AS r
LEFT JOIN ledger.processes AS p ON p.id = r.process_id
WHERE r.attempt_id >= @from_id::text::uuid AND r.attempt_id < @to_id::text::uuid
  AND r.request_id = @request::text::uuid AND (@organization::bigint = 0 OR r.organization_id = @organization::bigint)
ORDER BY r.attempt;
