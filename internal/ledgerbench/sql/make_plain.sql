-- Makes the plain meters of some limits and subjects.
INSERT INTO plain.meters (limit_id, subject, amount)
SELECT l.id, s.subject, $3 FROM unnest($1::bigint[]) AS l (id), generate_series(1, $2::bigint) AS s (subject)
