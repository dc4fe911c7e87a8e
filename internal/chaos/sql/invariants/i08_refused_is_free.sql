-- I08: who was refused with 429 or 503 was not forwarded and pays nothing, unless the gateway died over it
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT s.tag, s.status, s.code, a.forwards, b.rows, b.cost
    FROM sent AS s
    LEFT JOIN (SELECT tag, count(*) AS forwards FROM arrived GROUP BY tag) AS a USING (tag)
    LEFT JOIN (
        SELECT r.tag, count(*) AS rows, sum(r.cost) AS cost,
            -- A process that ended in order had all the time that it takes to give back what it had taken.
            bool_and(r.kind = 'expiry' AND p.stopped_at IS NULL) AS died
        FROM booked AS r
        LEFT JOIN ledger.processes AS p ON p.id = r.process_id
        GROUP BY r.tag
    ) AS b USING (tag)
    WHERE s.status IN (429, 503) AND NOT s.faulty
      AND (a.forwards > 0 OR b.cost <> 0 AND NOT b.died)
) AS v LIMIT 10;
