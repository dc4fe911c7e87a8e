-- Books what an attempt has cost.
INSERT INTO plain.rows (attempt_id, limits, subject, cost) VALUES ($1, $2, $3, 1)
