-- I04: what was forwarded has one row of usage or expiry
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT a.tag, a.forwards, coalesce(b.rows, 0) AS rows, s.status, s.faulty
    FROM (SELECT tag, count(*) AS forwards FROM arrived GROUP BY tag) AS a
    JOIN sent AS s USING (tag)
    LEFT JOIN (SELECT tag, count(*) AS rows FROM booked WHERE kind IN ('usage', 'expiry') GROUP BY tag) AS b USING (tag)
    WHERE NOT s.faulty AND coalesce(b.rows, 0) <> 1
) AS v LIMIT 10;
