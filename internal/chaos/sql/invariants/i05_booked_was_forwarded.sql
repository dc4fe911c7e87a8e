-- I05: what is booked was forwarded, unless it expired
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT b.tag, b.attempt_id, b.kind, b.usage_source, b.outcome, b.cost, s.status, s.code
    FROM booked AS b
    JOIN sent AS s USING (tag)
    WHERE b.kind = 'usage' AND NOT EXISTS (SELECT FROM arrived AS a WHERE a.tag = b.tag)
      -- A client that leaves takes a request with it that the upstream may have seen a part of.
      AND NOT (s.leaves AND b.usage_source = 'estimate')
) AS v LIMIT 10;
