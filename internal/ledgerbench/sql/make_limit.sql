-- Makes a limit that every attempt of the benchmark has to pass and returns its number.
INSERT INTO tollgate.limits (public_id, scope_type, scope_id, kind, metric, amount, per_seconds, burst, window_type, enforcement, mode, models)
VALUES ($1, 'key', 1, $2, $3, $4, $5, $6, $7, 'exact', 'enforce', ARRAY[$1])
RETURNING id
