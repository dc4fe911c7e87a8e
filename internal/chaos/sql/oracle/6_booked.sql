-- The ledger's rows by the tags of their requests.
CREATE TEMP TABLE booked AS
SELECT e.name AS tag, r.attempt_id, r.kind, r.usage_source, r.outcome, r.process_id, r.admitted_at, r.settled_at, r.cost,
    ledger.used(7::smallint, r.quantities, r.cost) AS input, ledger.used(8::smallint, r.quantities, r.cost) AS output
FROM ledger.rows AS r
JOIN tollgate.end_users AS e ON e.id = r.end_user_id;
