-- Work that no request asks for. Each statement is harmless to repeat and bounded by @count.

-- name: upkeep_partitions
SELECT ledger.ensure_partitions();

-- name: upkeep_clean
SELECT ledger.clean(@count::int);

-- name: upkeep_idempotency_keys
WITH ended AS (
    DELETE FROM tollgate.idempotency_keys AS k
    USING (
        SELECT key_id, idempotency_key FROM tollgate.idempotency_keys
        WHERE expires_at < clock_timestamp()
        ORDER BY expires_at
        LIMIT @count::bigint
        FOR UPDATE SKIP LOCKED
    ) AS e
    WHERE k.key_id = e.key_id AND k.idempotency_key = e.idempotency_key
    RETURNING 1
)
SELECT count(*) FROM ended;

-- name: upkeep_stored_responses
-- Providers keep responses for 30 days.
WITH ended AS (
    DELETE FROM tollgate.stored_responses AS s
    USING (
        SELECT organization_id, response_hash FROM tollgate.stored_responses
        WHERE created_at < clock_timestamp() - interval '31 days'
        ORDER BY created_at
        LIMIT @count::bigint
        FOR UPDATE SKIP LOCKED
    ) AS e
    WHERE s.organization_id = e.organization_id AND s.response_hash = e.response_hash
    RETURNING 1
)
SELECT count(*) FROM ended;

-- name: upkeep_windows
-- Budgets that carry debt are left out: until their window ends nobody knows what the next one owes.
WITH upcoming AS (
    SELECT l.id, w.present, w.following
    FROM tollgate.limits AS l
    CROSS JOIN LATERAL (
        SELECT
            ledger.window_start(l.window_type, l.window_period, l.window_zone, l.window_seconds,
                coalesce(l.window_anchor, l.created_at), statement_timestamp()) AS present,
            ledger.window_start(l.window_type, l.window_period, l.window_zone, l.window_seconds,
                coalesce(l.window_anchor, l.created_at), statement_timestamp() + @ahead::interval) AS following
        OFFSET 0
    ) AS w
    WHERE l.kind = 'budget' AND l.window_type <> 'total' AND l.deleted_at IS NULL
      AND (NOT l.carry_debt OR l.amount IS NULL) AND w.following > w.present
), missing AS (
    SELECT m.limit_id, m.subject, u.following
    FROM upcoming AS u
    JOIN ledger.meters AS m ON m.limit_id = u.id AND m.window_start = u.present
    WHERE NOT EXISTS (
        SELECT FROM ledger.meters AS n
        WHERE n.limit_id = m.limit_id AND n.subject = m.subject AND n.window_start = u.following)
    ORDER BY 1, 2
    LIMIT @count::bigint
)
SELECT a.made
FROM (
    SELECT count(*) AS made, coalesce(array_agg(limit_id), '{}') AS limits, coalesce(array_agg(subject), '{}') AS subjects,
        coalesce(array_agg(following), '{}') AS windows
    FROM missing
) AS a
CROSS JOIN LATERAL ledger.make_meters(a.limits, a.subjects, a.windows) AS done;

-- name: upkeep_outputs
-- Output tokens are the units 6 to 9. An answer's speed is its output over the whole time it took.
INSERT INTO tollgate.output_statistics AS o (target_id, p99_output, p95_rate, computed_at)
SELECT r.target_id,
    percentile_disc(0.99) WITHIN GROUP (ORDER BY r.output),
    coalesce(percentile_disc(0.95) WITHIN GROUP (ORDER BY r.output * 1000 / r.ms) FILTER (WHERE r.output >= 16), 0),
    clock_timestamp()
FROM (
    SELECT n.target_id,
        coalesce(n.quantities[7], 0) + coalesce(n.quantities[8], 0) + coalesce(n.quantities[9], 0) + coalesce(n.quantities[10], 0)
            AS output,
        greatest(1, floor(extract(epoch FROM n.settled_at - n.admitted_at) * 1000)::bigint) AS ms
    FROM (
        SELECT x.target_id, x.quantities, x.admitted_at, x.settled_at
        FROM ledger.rows AS x
        WHERE x.kind = 'usage' AND x.usage_source = 'provider' AND x.outcome = 'complete'
          AND x.attempt_id >= ledger.id_at(clock_timestamp() - interval '7 days')
        ORDER BY x.attempt_id DESC
        LIMIT @count::bigint
    ) AS n
) AS r
JOIN tollgate.targets AS t ON t.id = r.target_id
WHERE r.output > 0
GROUP BY r.target_id
ON CONFLICT (target_id) DO UPDATE
SET p99_output = excluded.p99_output, p95_rate = excluded.p95_rate, computed_at = excluded.computed_at;

-- name: upkeep_seal
SELECT s.block_number AS number, s.block_rows AS rows, s.block_digest AS hash
FROM ledger.seal(@count::int) AS s
WHERE s.block_number IS NOT NULL;

-- name: upkeep_places
SELECT coalesce(ledger.note_places(), 0);

-- name: upkeep_drop_month
SELECT d.oldest AS month, d.outcome FROM ledger.drop_month(@days::int, @count::int) AS d WHERE d.outcome IS NOT NULL;
