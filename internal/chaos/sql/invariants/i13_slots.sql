-- I13: no key has more requests upstream at once than it has slots
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT c.key_id, c.slots, c.at, c.held
    FROM (
        SELECT s.key_id, s.slots, e.at, sum(e.step) OVER (PARTITION BY s.key_id ORDER BY e.at, e.step) AS held
        FROM sent AS s
        JOIN arrived AS a USING (tag)
        CROSS JOIN LATERAL (VALUES (a.began, 1), (a.over, -1)) AS e (at, step)
        -- The slots of an attempt that expired, or whose client left, are free before the upstream is.
        WHERE s.slots > 0 AND NOT s.leaves AND NOT s.faulty
          AND NOT EXISTS (SELECT FROM booked AS b WHERE b.tag = s.tag AND b.kind = 'expiry')
    ) AS c
    WHERE c.held > c.slots
) AS v LIMIT 10;
