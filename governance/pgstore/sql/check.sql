-- The invariants of the ledger: how many rows break each, and ten of them as text for people.

-- name: leisure
-- For this transaction only. Sorting a long history needs more memory than a request may take, and compiling its many short
-- expressions costs more than it saves. Hashes are over times as UTC writes them.
SELECT set_config('statement_timeout', @timeout::text, true), set_config('work_mem', '64MB', true), set_config('jit', 'off', true),
    set_config('timezone', 'UTC', true), set_config('datestyle', 'ISO, YMD', true);

-- name: check_rows
-- How many rows there are, how many of them are sealed, and how many were; the newest block, and the age of the oldest row
-- that waits for one.
SELECT r.rows, r.sealed, s.number, s.hash, coalesce(b.rows, 0) AS in_blocks, extract(epoch FROM clock_timestamp() - r.oldest)::bigint AS waits,
    (s.number, s.hash) IS NOT DISTINCT FROM (coalesce(l.number, 0), coalesce(l.hash, '')) AS chained
FROM ledger.seal_mark AS s
CROSS JOIN LATERAL (
    SELECT count(*) AS rows, count(*) FILTER (WHERE (r.epoch, r.xid) < (s.epoch, s.until_xid)) AS sealed,
        coalesce(min(r.settled_at) FILTER (WHERE (r.epoch, r.xid) >= (s.epoch, s.until_xid)), clock_timestamp()) AS oldest
    FROM ledger.rows AS r
) AS r
CROSS JOIN LATERAL (
    SELECT sum(p.rows)::bigint AS rows FROM ledger.block_parts AS p
    WHERE p.month NOT IN (SELECT d.month FROM ledger.dropped_months AS d)
) AS b
LEFT JOIN LATERAL (SELECT l.number, l.hash FROM ledger.blocks AS l ORDER BY l.number DESC LIMIT 1) AS l ON true;

-- name: check_window_spent
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i01_window_spent AS v LIMIT 10;

-- name: check_held
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i02_held AS v LIMIT 10;

-- name: check_open_past_expiry
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i03_open_past_expiry AS v LIMIT 10;

-- name: check_reservation_and_row
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i06_reservation_and_row AS v LIMIT 10;

-- name: check_charged_as_booked
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i10_charged_as_booked AS v LIMIT 10;

-- name: check_bucket_rate
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i11_bucket_rate AS v LIMIT 10;

-- name: check_bucket_level
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i12_bucket_level AS v LIMIT 10;

-- name: check_budget_overshoot
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i13_budget_overshoot AS v LIMIT 10;

-- name: check_amounts
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i15_amounts AS v LIMIT 10;

-- name: check_one_row_per_attempt
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.one_row_per_attempt AS v LIMIT 10;

-- name: check_row_cost
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.row_cost AS v LIMIT 10;

-- name: check_run
-- The last of the blocks from @first on that have @count rows together: one at least, @most at most. A block that is missing
-- is one of them.
SELECT coalesce(max(b.number), @first::bigint)
FROM (
    SELECT n.number, sum(n.rows) OVER (ORDER BY n.number) - n.rows AS before
    FROM (SELECT b.number, b.rows FROM ledger.blocks AS b WHERE b.number >= @first::bigint ORDER BY b.number LIMIT @most::bigint) AS n
) AS b
WHERE b.before < @count::bigint;

-- name: check_blocks
-- Of a run of blocks those whose rows are not the ones that were sealed, or which do not follow their predecessor. Rows of
-- months that were dropped are taken to be as they were.
WITH runs AS (
    SELECT n AS number, b.epoch, b.from_xid, b.until_xid, b.first_seq, b.last_seq, b.rows, b.hash, p.hash AS previous, p.until_xid AS follows,
        p.epoch AS previous_epoch
    FROM generate_series(@first::bigint, @last::bigint) AS n
    LEFT JOIN ledger.blocks AS b ON b.number = n
    LEFT JOIN ledger.blocks AS p ON p.number = n - 1
), parts AS (
    SELECT r.number, p.month, p.rows, p.hash,
        CASE WHEN d.month IS NULL THEN f.rows ELSE p.rows END AS found_rows, CASE WHEN d.month IS NULL THEN f.hash ELSE p.hash END AS found_hash
    FROM runs AS r
    JOIN ledger.block_parts AS p ON p.block = r.number
    LEFT JOIN ledger.dropped_months AS d ON d.month = p.month
    CROSS JOIN LATERAL (
        SELECT count(*) AS rows, sha256(string_agg(ledger.row_digest(w), '' ORDER BY w.xid, w.seq)) AS hash
        FROM ledger.rows AS w
        WHERE d.month IS NULL AND w.seq BETWEEN r.first_seq AND r.last_seq AND w.epoch = r.epoch
          AND w.xid >= r.from_xid AND w.xid < r.until_xid
          AND (p.rows = r.rows OR ledger.month_of(w.attempt_id) = p.month)
    ) AS f
), found AS (
    SELECT p.number, sum(p.rows) AS rows, sum(p.found_rows) AS found_rows, string_agg(p.found_hash, '' ORDER BY p.month) AS hashes
    FROM parts AS p
    GROUP BY p.number
)
SELECT count(*) OVER () AS violations, jsonb_build_object('block', r.number, 'rows', r.rows, 'found', f.found_rows)::text AS sample
FROM runs AS r
LEFT JOIN found AS f ON f.number = r.number
WHERE r.hash IS NULL OR r.rows IS DISTINCT FROM f.rows OR r.rows IS DISTINCT FROM f.found_rows
   OR r.hash IS DISTINCT FROM ledger.block_hash(coalesce(r.previous, ''), r.number, r.epoch, r.from_xid, r.until_xid, f.hashes)
   OR r.number > 1 AND r.epoch = r.previous_epoch AND r.from_xid <> r.follows
LIMIT 10;

-- name: check_rollup_days
-- The days that have sealed rows.
SELECT DISTINCT d.day FROM ledger.days AS d ORDER BY d.day;

-- name: check_rollups
-- Of one day the sums that are not those of its sealed rows.
WITH kept AS (
    SELECT h.* FROM ledger.hours AS h
    WHERE h.hour >= @day::timestamptz AND h.hour < @day::timestamptz + interval '1 day'
      AND h.month NOT IN (SELECT d.month FROM ledger.dropped_months AS d)
), summed AS (
    SELECT date_trunc('hour', r.settled_at, 'UTC') AS hour, r.organization_id, r.team_id, r.key_id, r.user_id, r.model_id, r.target_id,
        r.model, r.provider, ledger.month_of(r.attempt_id) AS month, count(*) AS rows,
        count(*) FILTER (WHERE r.kind IN ('usage', 'expiry')) AS requests,
        sum(ledger.used(7::smallint, r.quantities, 0)) AS input_tokens, sum(ledger.used(8::smallint, r.quantities, 0)) AS output_tokens,
        sum(r.cost) AS cost
    FROM ledger.rows AS r
    WHERE r.settled_at >= @day::timestamptz AND r.settled_at < @day::timestamptz + interval '1 day'
      AND (r.epoch, r.xid) < (SELECT s.epoch, s.until_xid FROM ledger.seal_mark AS s)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
)
SELECT count(*) OVER () AS violations, jsonb_build_object('hour', hour, 'organization_id', organization_id, 'key_id', key_id,
    'model', model, 'provider', provider, 'rolled_up', k.cost, 'rows', s.cost)::text AS sample
FROM kept AS k
FULL JOIN summed AS s USING (hour, organization_id, team_id, key_id, user_id, model_id, target_id, model, provider, month)
WHERE (k.rows, k.requests, k.input_tokens, k.output_tokens, k.cost)
    IS DISTINCT FROM (s.rows, s.requests, s.input_tokens::bigint, s.output_tokens::bigint, s.cost::bigint)
LIMIT 10;

-- name: check_rollup_totals
-- Days and tenants' hours that are not the sums of the hours, and months whose sums are not those that were sealed.
SELECT count(*) OVER () AS violations, v.sample
FROM (
    SELECT jsonb_build_object('day', d.day, 'organization_id', organization_id, 'days', d.cost, 'hours', h.cost)::text AS sample
    FROM (
        SELECT x.day, x.organization_id, x.month, sum(x.rows) AS rows, sum(x.requests) AS requests, sum(x.input_tokens) AS input_tokens,
            sum(x.output_tokens) AS output_tokens, sum(x.cost) AS cost
        FROM ledger.days AS x GROUP BY 1, 2, 3
    ) AS d
    FULL JOIN (
        SELECT date_trunc('day', x.hour, 'UTC') AS day, x.organization_id, x.month, sum(x.rows) AS rows, sum(x.requests) AS requests,
            sum(x.input_tokens) AS input_tokens, sum(x.output_tokens) AS output_tokens, sum(x.cost) AS cost
        FROM ledger.hours AS x GROUP BY 1, 2, 3
    ) AS h USING (day, organization_id, month)
    WHERE (d.rows, d.requests, d.input_tokens, d.output_tokens, d.cost)
        IS DISTINCT FROM (h.rows, h.requests, h.input_tokens, h.output_tokens, h.cost)
    UNION ALL
    SELECT jsonb_build_object('hour', t.hour, 'organization_id', organization_id, 'tenant_hours', t.cost, 'hours', h.cost)::text
    FROM (
        SELECT x.hour, x.organization_id, x.model, x.provider, x.month, sum(x.rows) AS rows, sum(x.requests) AS requests,
            sum(x.input_tokens) AS input_tokens, sum(x.output_tokens) AS output_tokens, sum(x.cost) AS cost
        FROM ledger.tenant_hours AS x GROUP BY 1, 2, 3, 4, 5
    ) AS t
    FULL JOIN (
        SELECT x.hour, x.organization_id, x.model, x.provider, x.month, sum(x.rows) AS rows, sum(x.requests) AS requests,
            sum(x.input_tokens) AS input_tokens, sum(x.output_tokens) AS output_tokens, sum(x.cost) AS cost
        FROM ledger.hours AS x GROUP BY 1, 2, 3, 4, 5
    ) AS h USING (hour, organization_id, model, provider, month)
    WHERE (t.rows, t.requests, t.input_tokens, t.output_tokens, t.cost)
        IS DISTINCT FROM (h.rows, h.requests, h.input_tokens, h.output_tokens, h.cost)
    UNION ALL
    SELECT jsonb_build_object('month', month, 'rolled_up', h.cost, 'sealed', p.cost)::text
    FROM (SELECT x.month, sum(x.rows) AS rows, sum(x.cost) AS cost FROM ledger.hours AS x GROUP BY 1) AS h
    FULL JOIN (SELECT x.month, sum(x.rows) AS rows, sum(x.cost) AS cost FROM ledger.block_parts AS x GROUP BY 1) AS p USING (month)
    WHERE (h.rows, h.cost) IS DISTINCT FROM (p.rows, p.cost)
) AS v
LIMIT 10;
