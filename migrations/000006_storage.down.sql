-- The audit reads whole ledgers again.
CREATE OR REPLACE VIEW audit.i01_window_spent AS
WITH booked AS (
    SELECT g.limit_id, g.subject, g.window_start, sum(g.actual) AS spent
    FROM audit.row_legs AS g
    WHERE g.class BETWEEN 6 AND 9
    GROUP BY g.limit_id, g.subject, g.window_start
), stored AS (
    SELECT m.limit_id, m.subject, m.window_start, m.spent FROM ledger.meters AS m WHERE m.spent <> 0
)
SELECT limit_id, subject, window_start, coalesce(s.spent, 0) AS stored, coalesce(b.spent, 0) AS booked
FROM stored AS s
FULL JOIN booked AS b USING (limit_id, subject, window_start)
WHERE coalesce(s.spent, 0) <> coalesce(b.spent, 0);

CREATE OR REPLACE VIEW audit.i06_reservation_and_row AS
SELECT r.attempt_id, v.state, r.kind
FROM ledger.reservations AS v
JOIN ledger.rows AS r ON r.attempt_id = v.attempt_id AND r.kind IN ('usage', 'expiry')
UNION ALL
SELECT a.attempt_id, 'missing', a.kind
FROM ledger.rows AS a
WHERE a.kind = 'late_adjustment'
  AND NOT EXISTS (SELECT FROM ledger.rows AS r WHERE r.attempt_id = a.attempt_id AND r.kind IN ('usage', 'expiry'))
UNION ALL
SELECT a.attempt_id, 'missing', a.kind
FROM ledger.rows AS a
WHERE a.kind = 'correction'
  AND NOT EXISTS (SELECT FROM ledger.rows AS r WHERE r.attempt_id = a.corrects_attempt AND r.kind = a.corrects_kind);

CREATE OR REPLACE VIEW audit.i13_budget_overshoot AS
WITH windows AS (
    SELECT m.limit_id, m.subject, m.window_start, m.spent, m.held, l.amount
    FROM ledger.meters AS m
    JOIN tollgate.limits AS l ON l.id = m.limit_id
    WHERE l.kind = 'budget' AND l.amount IS NOT NULL AND l.mode = 'enforce' AND l.enforcement = 'exact'
      AND (m.window_start > l.updated_at OR l.version = 1)
      AND m.spent + m.held > l.amount
), overshot AS (
    SELECT w.limit_id, w.subject, w.window_start, sum(greatest(0, g.actual - g.reserved)) AS over
    FROM windows AS w
    JOIN audit.row_legs AS g USING (limit_id, subject, window_start)
    GROUP BY w.limit_id, w.subject, w.window_start
)
SELECT w.*, coalesce(o.over, 0) AS over
FROM windows AS w
LEFT JOIN overshot AS o USING (limit_id, subject, window_start)
WHERE w.spent + w.held > w.amount + coalesce(o.over, 0);

CREATE OR REPLACE VIEW audit.row_cost AS
SELECT r.attempt_id, r.kind, r.usage_source, r.cost, audit.half_even(s.millionths) AS computed
FROM ledger.rows AS r
CROSS JOIN LATERAL (
    SELECT coalesce(sum(u.quantity::numeric * u.price), 0) AS millionths
    FROM unnest(r.quantities, r.unit_prices) AS u (quantity, price)
    WHERE u.quantity <> 0 AND u.price <> 0
) AS s
WHERE r.kind IN ('usage', 'expiry')
  AND r.cost <> audit.half_even(s.millionths)
  AND (r.usage_source <> 'reservation' OR r.cost <> ceil(s.millionths / 1000000))
UNION ALL
SELECT a.attempt_id, a.kind, a.usage_source, r.cost + a.cost, audit.half_even(s.millionths)
FROM ledger.rows AS a
JOIN ledger.rows AS r ON r.attempt_id = a.attempt_id AND r.kind IN ('usage', 'expiry')
CROSS JOIN LATERAL (
    SELECT coalesce(sum((coalesce(b.quantity, 0) + u.quantity)::numeric * u.price), 0) AS millionths
    FROM unnest(a.quantities, a.unit_prices) WITH ORDINALITY AS u (quantity, price, unit)
    LEFT JOIN unnest(r.quantities) WITH ORDINALITY AS b (quantity, unit) USING (unit)
) AS s
WHERE a.kind = 'late_adjustment'
  AND (a.cost <> 0 OR 0 <> ANY (a.quantities))
  AND r.cost + a.cost <> audit.half_even(s.millionths);

CREATE OR REPLACE VIEW audit.bucket_events AS
WITH legs AS (
    SELECT g.limit_id, g.subject, g.reserved, g.actual, g.admitted_at, g.settled_at
    FROM tollgate.organizations AS o
    JOIN audit.row_legs AS g ON g.organization_id = o.id AND g.settled_at > now() - interval '1 day' AND g.class < 6
    UNION ALL
    SELECT g.limit_id, g.subject, g.reserved, NULL, g.admitted_at, NULL FROM audit.open_legs AS g WHERE g.class < 6
    UNION ALL
    SELECT g.limit_id, g.subject, g.reserved, 0, r.admitted_at, r.closed_at
    FROM ledger.reservations AS r
    CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_classes, r.leg_reserved) AS g (limit_id, subject, class, reserved)
    WHERE r.state = 'released' AND r.admitted_at IS NOT NULL AND g.class < 6
)
SELECT limit_id, subject, admitted_at AS at, 1 AS step, reserved AS taken, 0 AS back FROM legs WHERE reserved > 0
UNION ALL
SELECT limit_id, subject, settled_at, 0, 0, reserved - actual FROM legs WHERE actual <> reserved;

DROP FUNCTION audit.millionths, audit.further_millionths;
DROP FUNCTION ledger.drop_month, ledger.read_month, ledger.note_places, ledger.seal, ledger.block_hash, ledger.row_digest, ledger.month_of;
DROP TABLE ledger.dropped_months, ledger.dropping_openings, ledger.dropping, ledger.openings, ledger.days, ledger.tenant_hours, ledger.hours, ledger.block_parts, ledger.blocks, ledger.seal_mark;
ALTER TABLE ledger.state DROP COLUMN kept_from;
