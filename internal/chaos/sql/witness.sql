-- Rows that were added since, with a hash of all that they say.
SELECT r.seq, r.attempt_id || ' ' || r.kind AS id, md5(r::text) AS hash
FROM ledger.rows AS r
WHERE r.seq > @after
ORDER BY r.seq
LIMIT 20000;
