-- Whole periods of the ledger, a few thousand rows at a time. Sealed rows never change, so no snapshot has to last.

-- name: export_blocks
-- The next blocks that may have rows of a period: as many as have @count rows together, but one at least. A month of little
-- traffic has a hundred thousand of a few rows each. dropped counts their rows of months that were dropped.
SELECT b.number, b.rows, b.hash, b.first_seq, b.last_seq,
    (SELECT coalesce(sum(p.rows), 0)::bigint FROM ledger.block_parts AS p
     JOIN ledger.dropped_months AS d ON d.month = p.month
     WHERE p.block = b.number) AS dropped
FROM (
    SELECT n.number, n.rows, n.hash, n.first_seq, n.last_seq, sum(n.rows) OVER (ORDER BY n.number) AS together
    FROM (
        SELECT b.number, b.rows, b.hash, b.first_seq, b.last_seq
        FROM ledger.blocks AS b
        WHERE b.number > @after::bigint
          AND (@from::timestamptz IS NULL OR b.settled_to >= @from::timestamptz)
          AND (@to::timestamptz IS NULL OR b.settled_from < @to::timestamptz)
        ORDER BY b.number
        LIMIT @most::bigint
    ) AS n
) AS b
WHERE b.together <= @count::bigint OR b.together = b.rows
ORDER BY b.number;

-- name: export_page
-- The rows of some blocks whose numbers lie in a range, in their order. The index of places has them.
SELECT r.attempt_id, r.kind, r.settled_at, r.seq
FROM ledger.blocks AS b
JOIN ledger.rows AS r ON r.epoch = b.epoch AND r.xid >= b.from_xid AND r.xid < b.until_xid
WHERE b.number BETWEEN @first::bigint AND @last::bigint AND r.seq >= @low::bigint AND r.seq < @high::bigint
  AND {narrow r}
  AND (NOT @by_end_user::boolean OR r.end_user_id = ANY (@end_users::bigint[]))
  AND (@request::text = '' OR r.request_id = nullif(@request::text, '')::uuid)
  AND {settled r}
ORDER BY b.number, r.seq;

-- name: export_unsealed
-- How many rows of a period no block has yet.
SELECT count(*)
FROM ledger.rows AS r
WHERE r.seq > (SELECT s.floor_seq FROM ledger.seal_mark AS s)
  AND (r.epoch, r.xid) >= (SELECT s.epoch, s.until_xid FROM ledger.seal_mark AS s)
  AND {narrow r}
  AND (NOT @by_end_user::boolean OR r.end_user_id = ANY (@end_users::bigint[]))
  AND (@request::text = '' OR r.request_id = nullif(@request::text, '')::uuid)
  AND {settled r};
