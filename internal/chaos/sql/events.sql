-- What happened, as the ledger tells it.
SELECT
    (SELECT count(*) FROM ledger.rows) AS rows,
    (SELECT count(*) FROM ledger.rows WHERE kind = 'expiry') AS expiries,
    (SELECT count(*) FROM ledger.rows WHERE kind = 'late_adjustment') AS late_adjustments,
    (SELECT count(*) FROM ledger.rows AS r
     WHERE EXISTS (SELECT FROM unnest(r.leg_actual, r.leg_reserved) AS l (actual, reserved) WHERE l.actual > l.reserved)) AS debts,
    (SELECT count(*) FROM ledger.reservations WHERE state = 'released' AND admitted_at IS NOT NULL) AS releases,
    (SELECT count(*) FROM ledger.reservations WHERE state = 'released' AND admitted_at IS NULL) AS tombstones;
