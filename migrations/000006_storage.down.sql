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

DROP FUNCTION ledger.drop_month, ledger.note_places, ledger.seal, ledger.block_hash, ledger.row_digest, ledger.month_of;
DROP TABLE ledger.dropped_months, ledger.openings, ledger.days, ledger.hours, ledger.block_parts, ledger.blocks, ledger.seal_mark;
ALTER TABLE ledger.state DROP COLUMN kept_from;
