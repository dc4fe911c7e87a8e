-- What people and policies add to the ledger. Rows and meters are changed by functions of the ledger's schema.

-- name: provisional_row
-- The target can have worked until the attempt was given up, and for no longer than its gateway lived.
SELECT r.attempt_id, r.organization_id, r.quantities, r.unit_prices, r.cost, r.admitted_at,
    greatest(r.admitted_at, least(r.settled_at, p.beat_at, p.stopped_at)) AS last_seen_at,
    coalesce(o.p95_rate, 0) AS output_rate
FROM ledger.rows AS r
LEFT JOIN ledger.processes AS p ON p.id = r.process_id
LEFT JOIN tollgate.output_statistics AS o ON o.target_id = r.target_id
WHERE r.attempt_id = @attempt::text::uuid AND r.kind IN ('usage', 'expiry') AND r.usage_source = 'reservation'
  AND (@organization::bigint = 0 OR r.organization_id = @organization::bigint);

-- name: provisional_due
-- Oldest first, of those that nobody has resolved in the time that people have for it.
SELECT r.attempt_id, r.organization_id, r.quantities, r.unit_prices, r.cost, r.admitted_at,
    greatest(r.admitted_at, least(r.settled_at, p.beat_at, p.stopped_at)) AS last_seen_at,
    coalesce(o.p95_rate, 0) AS output_rate
FROM ledger.rows AS r
LEFT JOIN ledger.processes AS p ON p.id = r.process_id
LEFT JOIN tollgate.output_statistics AS o ON o.target_id = r.target_id
WHERE r.usage_source = 'reservation' AND r.kind IN ('usage', 'expiry')
  AND r.attempt_id < ledger.id_at(clock_timestamp() - @after::interval)
  AND r.settled_at < clock_timestamp() - @after::interval
  AND NOT EXISTS (SELECT FROM ledger.rows AS a WHERE a.attempt_id = r.attempt_id AND a.kind = 'late_adjustment')
ORDER BY r.attempt_id
LIMIT @count::bigint;

-- name: provisional_resolve
SELECT ledger.resolve(
    @attempt::text::uuid, @source::text, @quantities::bigint[], @prices::bigint[], @cost::bigint, @actor::text, @reason::text);

-- name: row_instant
-- Whether there is such a row; and the clock, for the id of the row that corrects it.
SELECT clock_timestamp() FROM ledger.rows AS r
WHERE r.attempt_id = @attempt::text::uuid AND r.kind = @kind::text
  AND (@organization::bigint = 0 OR r.organization_id = @organization::bigint);

-- name: row_correct
SELECT ledger.correct(
    @new::text::uuid, @attempt::text::uuid, @kind::text, @quantities::bigint[], @cost::bigint, @actor::text, @reason::text);

-- name: credit_account
SELECT clock_timestamp() AS now, o.id AS organization,
    CASE WHEN @team::text = '' THEN 0
         ELSE coalesce((SELECT t.id FROM tollgate.teams AS t WHERE t.public_id = @team::text), -1) END AS team,
    CASE WHEN @key::text = '' THEN 0
         ELSE coalesce((SELECT k.id FROM tollgate.virtual_keys AS k WHERE k.public_id = @key::text), -1) END AS key
FROM tollgate.organizations AS o
WHERE o.public_id = @organization::text AND (@bound::bigint = 0 OR o.id = @bound::bigint);

-- name: row_credit
SELECT ledger.credit(
    @new::text::uuid, @organization::bigint, @team::bigint, @key::bigint, @units::int, @cost::bigint, @actor::text,
    @reason::text);

-- name: decision_audit
INSERT INTO tollgate.audit_log (
    actor_kind, actor_id, actor_name, ip, request_id, reason, action, resource, resource_id, organization_id, after
)
SELECT @actor_kind::text, @actor_id::text, @actor_name::text, @ip::text, @request_id::text, @reason::text, @action::text,
    'spend', @id::text, nullif(@organization::bigint, 0),
    jsonb_build_object('attempt_id', r.attempt_id, 'kind', r.kind, 'usage_source', r.usage_source, 'cost', r.cost,
        'quantities', r.quantities, 'corrects_attempt', r.corrects_attempt, 'corrects_kind', r.corrects_kind)
FROM ledger.rows AS r
WHERE r.attempt_id = @attempt::text::uuid AND r.kind = @kind::text;
