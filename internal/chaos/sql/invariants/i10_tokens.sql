-- I10: charged tokens are those that the upstream reported
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT s.tag, s.input_used, b.input, s.output_used, b.output, b.sources
    FROM sent AS s
    JOIN (
        SELECT r.tag, sum(r.input) AS input, sum(r.output) AS output, string_agg(r.kind || ' ' || r.usage_source, ', ') AS sources,
            bool_or(r.kind = 'usage' OR r.kind = 'late_adjustment') AS settled
        FROM booked AS r
        GROUP BY r.tag
    ) AS b USING (tag)
    WHERE s.status = 200 AND s.whole AND NOT s.faulty AND b.settled
      AND (b.input <> s.input_used OR b.output <> s.output_used)
) AS v LIMIT 10;
