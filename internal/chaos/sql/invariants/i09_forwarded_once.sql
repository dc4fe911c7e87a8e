-- I09: an attempt is forwarded once
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT a.tag, a.forwards, s.faulty, o.attempts
    FROM (SELECT tag, count(*) AS forwards FROM arrived GROUP BY tag) AS a
    JOIN sent AS s USING (tag)
    CROSS JOIN LATERAL (
        -- Only a request whose upstream refused it has a second attempt.
        SELECT CASE WHEN s.faulty THEN (SELECT count(*) FROM booked AS b WHERE b.tag = a.tag AND b.kind IN ('usage', 'expiry'))
            + (SELECT count(*) FROM ledger.reservations AS r JOIN tollgate.end_users AS e ON e.id = r.end_user_id
               WHERE e.name = a.tag AND r.state = 'released') ELSE 1 END AS attempts
    ) AS o
    WHERE a.forwards > 1 AND a.forwards > o.attempts
) AS v LIMIT 10;
