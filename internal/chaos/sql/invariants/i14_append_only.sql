-- I14: a row that was seen is still there, and says the same
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT w.id, r.attempt_id IS NULL AS gone
    FROM witnessed AS w
    LEFT JOIN ledger.rows AS r ON r.attempt_id = split_part(w.id, ' ', 1)::uuid AND r.kind = split_part(w.id, ' ', 2)
    WHERE r.attempt_id IS NULL OR md5(r::text) <> w.hash
) AS v LIMIT 10;
