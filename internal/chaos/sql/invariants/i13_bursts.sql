-- I13: of a burst into room for one, one is forwarded
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT s.burst, s.key_id, count(*) AS requests, count(*) FILTER (WHERE a.tag IS NOT NULL) AS forwarded,
        count(*) FILTER (WHERE s.status = 503) AS undecided
    FROM sent AS s
    LEFT JOIN (SELECT DISTINCT tag FROM arrived) AS a USING (tag)
    WHERE s.burst > 0
    GROUP BY s.burst, s.key_id, s.slots
    HAVING count(*) FILTER (WHERE a.tag IS NOT NULL) > 1 AND s.slots = 0
        OR count(*) FILTER (WHERE a.tag IS NOT NULL) = 0 AND bool_and(s.status = 429)
) AS v LIMIT 10;
