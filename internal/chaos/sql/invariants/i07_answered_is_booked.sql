-- I07: whoever got a whole answer has a row
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT s.tag, s.key_id, s.sent_at, s.done_at
    FROM sent AS s
    WHERE s.status = 200 AND s.whole
      AND NOT EXISTS (SELECT FROM booked AS b WHERE b.tag = s.tag AND b.kind IN ('usage', 'expiry'))
) AS v LIMIT 10;
