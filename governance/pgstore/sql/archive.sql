-- Months of the ledger that go to files. Sealed rows never change, so no snapshot has to last.

-- name: archive_horizon
-- The first day of the month that is open, and that of the first month which is too young to be dropped.
SELECT date_trunc('month', n.now)::date AS open, date_trunc('month', n.now - make_interval(days => @days::int))::date AS young
FROM (SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now) AS n;

-- name: archive_months
-- The months before a day that have partitions, the oldest first, and what was sealed of them.
SELECT m.month, m.bytes, coalesce(p.rows, 0)::bigint AS rows, coalesce(p.cost, 0)::bigint AS cost, coalesce(p.block, 0) AS block,
    coalesce((SELECT b.hash FROM ledger.blocks AS b WHERE b.number = p.block), '') AS block_hash
FROM (
    SELECT to_date(right(c.relname, 6), 'YYYYMM') AS month, pg_total_relation_size(c.oid) AS bytes
    FROM pg_inherits AS i
    JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ledger.rows'::regclass AND c.relname ~ '^rows_\d{6}$'
) AS m
LEFT JOIN LATERAL (
    SELECT sum(b.rows) AS rows, sum(b.cost) AS cost, max(b.block) AS block FROM ledger.block_parts AS b WHERE b.month = m.month
) AS p ON true
WHERE m.month < @before::date
ORDER BY m.month;

-- name: archive_obstacles
-- What keeps a month from being closed.
SELECT
    (SELECT count(*) FROM ledger.rows AS r
     WHERE r.attempt_id >= @from_id::uuid AND r.attempt_id < @to_id::uuid
       AND (r.epoch, r.xid) >= (SELECT s.epoch, s.until_xid FROM ledger.seal_mark AS s)) AS unsealed,
    (SELECT count(*) FROM ledger.reservations AS v WHERE v.attempt_id < @to_id::uuid AND v.state = 'open') AS in_flight,
    (SELECT count(*) FROM ledger.rows AS r
     WHERE r.attempt_id >= @from_id::uuid AND r.attempt_id < @to_id::uuid
       AND r.usage_source = 'reservation' AND r.kind IN ('usage', 'expiry')
       AND NOT EXISTS (SELECT FROM ledger.rows AS a WHERE a.attempt_id = r.attempt_id AND a.kind = 'late_adjustment')) AS provisional,
    (SELECT count(*) FROM ledger.rows_default AS r WHERE r.attempt_id < @to_id::uuid) AS stray;

-- name: archive_last_block
-- The newest block, and whether the mark of the seals names it.
SELECT s.number, (s.number, s.hash) IS NOT DISTINCT FROM (coalesce(l.number, 0), coalesce(l.hash, '')) AS marked
FROM ledger.seal_mark AS s
LEFT JOIN LATERAL (SELECT b.number, b.hash FROM ledger.blocks AS b ORDER BY b.number DESC LIMIT 1) AS l ON true;

-- name: archive_broken_block
-- The first of a run of blocks that is gone, has another hash than its parts and its predecessor make, or does not begin where
-- its predecessor has ended. No row is read.
SELECT n.number
FROM generate_series(@first::bigint, @last::bigint) AS n (number)
LEFT JOIN ledger.blocks AS b ON b.number = n.number
LEFT JOIN ledger.blocks AS p ON p.number = n.number - 1
LEFT JOIN LATERAL (
    SELECT sum(x.rows) AS rows, sum(x.cost) AS cost, string_agg(x.hash, '' ORDER BY x.month) AS hashes
    FROM ledger.block_parts AS x
    WHERE x.block = n.number
) AS x ON true
WHERE b.number IS NULL OR (b.rows, b.cost) IS DISTINCT FROM (x.rows, x.cost)
   OR b.hash IS DISTINCT FROM ledger.block_hash(coalesce(p.hash, ''), b.number, b.epoch, b.from_xid, b.until_xid, x.hashes)
   OR n.number > 1 AND (p.number IS NULL OR b.epoch = p.epoch AND b.from_xid <> p.until_xid)
ORDER BY n.number
LIMIT 1;

-- name: archive_blocks
-- The next blocks that have rows of a month, with all of their parts.
SELECT b.number, b.epoch, b.from_xid::text AS from_xid, b.until_xid::text AS until_xid, b.first_seq, b.last_seq, b.hash,
    coalesce(p.hash, '') AS previous, own.rows AS own_rows, x.months, x.rows, x.costs, x.hashes
FROM ledger.block_parts AS own
JOIN ledger.blocks AS b ON b.number = own.block
LEFT JOIN ledger.blocks AS p ON p.number = own.block - 1
CROSS JOIN LATERAL (
    SELECT array_agg(a.month ORDER BY a.month) AS months, array_agg(a.rows ORDER BY a.month) AS rows,
        array_agg(a.cost ORDER BY a.month) AS costs, array_agg(a.hash ORDER BY a.month) AS hashes
    FROM ledger.block_parts AS a
    WHERE a.block = own.block
) AS x
WHERE own.month = @month::date AND own.block > @after::bigint
ORDER BY own.block
LIMIT @count::bigint;

-- name: archive_rows
-- The rows of a month in a run of blocks, in the order in which they were hashed, with what was said about their calls.
SELECT b.number, ledger.row_digest(r) AS digest, to_jsonb(r)::text AS row,
    CASE WHEN r.kind IN ('usage', 'expiry') THEN to_jsonb(a)::text END AS attribution
FROM ledger.rows AS r
JOIN ledger.blocks AS b ON b.epoch = r.epoch AND r.xid >= b.from_xid AND r.xid < b.until_xid
LEFT JOIN ledger.attribution AS a ON a.attempt_id = r.attempt_id AND a.attempt_id >= @from_id::uuid AND a.attempt_id < @to_id::uuid
WHERE b.number BETWEEN @first::bigint AND @last::bigint AND r.seq BETWEEN @first_seq::bigint AND @last_seq::bigint
  AND r.attempt_id >= @from_id::uuid AND r.attempt_id < @to_id::uuid
ORDER BY b.number, r.xid, r.seq;

-- name: archive_dropped
-- What a month had when it was dropped.
SELECT d.rows, d.cost FROM ledger.dropped_months AS d WHERE d.month = @month::date;
