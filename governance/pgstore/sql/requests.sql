-- name: end_users_find
SELECT id FROM tollgate.end_users WHERE organization_id = @organization::bigint AND name = @name::text;

-- name: end_users_add
INSERT INTO tollgate.end_users (organization_id, name) VALUES (@organization::bigint, @name::text)
ON CONFLICT (organization_id, name) DO NOTHING;

-- name: idempotency_add
INSERT INTO tollgate.idempotency_keys (key_id, idempotency_key, body_hash, request_id, claimed_until, expires_at)
VALUES (
    @key::bigint, @idempotency_key::text, @body_hash::bytea, @request::uuid,
    clock_timestamp() + interval '1 hour', clock_timestamp() + interval '24 hours'
)
ON CONFLICT (key_id, idempotency_key) DO NOTHING;

-- name: idempotency_lock
SELECT body_hash, NOT finished AND claimed_until > clock_timestamp() AS in_flight,
    expires_at <= clock_timestamp() AS expired
FROM tollgate.idempotency_keys
WHERE key_id = @key::bigint AND idempotency_key = @idempotency_key::text
FOR UPDATE;

-- name: idempotency_claim
UPDATE tollgate.idempotency_keys
SET body_hash = @body_hash::bytea, request_id = @request::uuid, finished = false,
    claimed_until = clock_timestamp() + interval '1 hour', expires_at = clock_timestamp() + interval '24 hours'
WHERE key_id = @key::bigint AND idempotency_key = @idempotency_key::text;

-- name: idempotency_finish
UPDATE tollgate.idempotency_keys SET finished = true
WHERE key_id = @key::bigint AND idempotency_key = @idempotency_key::text AND request_id = @request::uuid;

-- name: idempotency_prune
DELETE FROM tollgate.idempotency_keys
WHERE (key_id, idempotency_key) IN (
    SELECT key_id, idempotency_key FROM tollgate.idempotency_keys
    WHERE expires_at <= clock_timestamp()
    ORDER BY expires_at
    LIMIT 10000
    FOR UPDATE SKIP LOCKED
);

-- name: stored_responses_add
INSERT INTO tollgate.stored_responses (organization_id, response_hash, target_id)
SELECT @organization::bigint, h, @target::bigint FROM unnest(@response_hashes::bytea[]) AS h
ON CONFLICT (organization_id, response_hash) DO NOTHING;

-- name: stored_responses_find
SELECT target_id FROM tollgate.stored_responses
WHERE organization_id = @organization::bigint AND response_hash = @response_hash::bytea;
