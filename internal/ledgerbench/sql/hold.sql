-- Notes what an attempt holds.
INSERT INTO plain.reservations (attempt_id, limits, subject, expires_at)
VALUES ($1, $2, $3, clock_timestamp() + interval '1 hour')
