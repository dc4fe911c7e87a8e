-- The invariants of the ledger: how many rows break each, and ten of them as text for people.

-- name: leisure
-- For this transaction only. Sorting a long history needs more memory than a request may take, and compiling its many short
-- expressions costs more than it saves.
SELECT set_config('statement_timeout', @timeout::text, true), set_config('work_mem', '64MB', true), set_config('jit', 'off', true);

-- name: check_rows
SELECT count(*) FROM ledger.rows;

-- name: check_window_spent
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i01_window_spent AS v LIMIT 10;

-- name: check_held
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i02_held AS v LIMIT 10;

-- name: check_open_past_expiry
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i03_open_past_expiry AS v LIMIT 10;

-- name: check_reservation_and_row
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i06_reservation_and_row AS v LIMIT 10;

-- name: check_charged_as_booked
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i10_charged_as_booked AS v LIMIT 10;

-- name: check_bucket_rate
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i11_bucket_rate AS v LIMIT 10;

-- name: check_bucket_level
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i12_bucket_level AS v LIMIT 10;

-- name: check_budget_overshoot
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i13_budget_overshoot AS v LIMIT 10;

-- name: check_amounts
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.i15_amounts AS v LIMIT 10;

-- name: check_one_row_per_attempt
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.one_row_per_attempt AS v LIMIT 10;

-- name: check_row_cost
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM audit.row_cost AS v LIMIT 10;
