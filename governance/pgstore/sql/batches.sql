-- part: file
x.id AS num, x.public_id AS id, x.organization_id AS organization, x.target_id AS target, x.upstream_id, x.purpose, x.name,
    x.bytes, x.created_at, x.expires_at, x.model, x.route, x.requests, x.input_tokens, x.largest_input, x.output_tokens,
    x.open_outputs, x.no_output, x.cache_writes, x.images, x.audio, x.audio_output, x.estimator

-- name: file_add
INSERT INTO tollgate.files AS f (public_id, organization_id, target_id, upstream_id, purpose, name, bytes, expires_at,
    model, route, requests, input_tokens, largest_input, output_tokens, open_outputs, no_output, cache_writes, images, audio,
    audio_output, estimator)
VALUES (@id::text, @organization::bigint, @target::bigint, @upstream_id::text, @purpose::text, @file_name::text, @bytes::bigint,
    @expires_at::timestamptz, @model::text, @route::text, @requests::bigint, @input_tokens::bigint, @largest_input::bigint,
    @output_tokens::bigint, @open_outputs::bigint, @no_output::boolean, @cache_writes::boolean, @images::boolean,
    @audio::boolean, @audio_output::boolean, @estimator::int)
RETURNING {file f};

-- name: file_find
SELECT {file f} FROM tollgate.files AS f
WHERE f.public_id = @id::text AND f.organization_id = @organization::bigint AND f.deleted_at IS NULL;

-- name: file_page
-- Newest first, from behind one file on; 0: from the newest.
SELECT {file f} FROM tollgate.files AS f
WHERE f.organization_id = @organization::bigint AND f.deleted_at IS NULL
  AND (@purpose::text = '' OR f.purpose = @purpose::text)
  AND (@before::bigint = 0 OR f.id < @before::bigint)
ORDER BY f.id DESC
LIMIT @count::bigint;

-- name: file_delete
UPDATE tollgate.files SET deleted_at = clock_timestamp()
WHERE public_id = @id::text AND organization_id = @organization::bigint AND deleted_at IS NULL;

-- part: batch
x.id AS num, x.public_id AS id, x.organization_id AS organization, x.key_id AS key, x.target_id AS target,
    coalesce(x.upstream_id, '') AS upstream_id, x.state, x.picture, x.created_at, x.expires_at,
    x.expires_at < clock_timestamp() AS overdue, x.looks,
    f.public_id AS file_id, f.upstream_id AS file_upstream, f.route, f.requests, f.input_tokens

-- name: batch_add
INSERT INTO tollgate.batches (public_id, organization_id, key_id, target_id, file_id, state, picture, expires_at, due_at)
SELECT @id::text, f.organization_id, @key::bigint, f.target_id, f.id, 'creating', @picture::bytea,
    clock_timestamp() + @window::interval, clock_timestamp() + @creation::interval
FROM tollgate.files AS f
WHERE f.public_id = @file_id::text AND f.organization_id = @organization::bigint AND f.deleted_at IS NULL
RETURNING id;

-- name: batch_charges_add
-- Prices are flat, with the same number of units for each.
INSERT INTO tollgate.batch_charges (attempt_id, batch_id, from_input, unit_prices)
SELECT c.attempt_id::uuid, @num::bigint, c.from_input, (@unit_prices::bigint[])[(c.i - 1) * @units::int + 1:c.i * @units::int]
FROM unnest(@attempts::text[], @from_inputs::bigint[]) WITH ORDINALITY AS c (attempt_id, from_input, i);

-- name: batch_charges
SELECT c.batch_id AS num, c.attempt_id, c.from_input, c.unit_prices FROM tollgate.batch_charges AS c
WHERE c.batch_id = ANY (@nums::bigint[])
ORDER BY c.batch_id, c.from_input;

-- name: batch_find
SELECT {batch b} FROM tollgate.batches AS b JOIN tollgate.files AS f ON f.id = b.file_id
WHERE b.public_id = @id::text AND b.organization_id = @organization::bigint;

-- name: batch_page
SELECT {batch b} FROM tollgate.batches AS b JOIN tollgate.files AS f ON f.id = b.file_id
WHERE b.organization_id = @organization::bigint AND (@before::bigint = 0 OR b.id < @before::bigint)
ORDER BY b.id DESC
LIMIT @count::bigint;

-- name: batch_open
UPDATE tollgate.batches
SET state = 'open', upstream_id = @upstream_id::text, picture = @picture::bytea, due_at = clock_timestamp() + @again::interval
WHERE id = @num::bigint AND state = 'creating';

-- name: batch_forget
DELETE FROM tollgate.batches WHERE id = @num::bigint AND state = 'creating';

-- name: batch_due
-- The first update is the claim: rows that another replica is about to take are passed over, and what is taken is due to
-- nobody else for a while, though its taker may die.
WITH due AS (
    SELECT id FROM tollgate.batches
    WHERE state <> 'ended' AND due_at <= clock_timestamp()
    ORDER BY due_at
    LIMIT @count::bigint
    FOR UPDATE SKIP LOCKED
), mine AS (
    UPDATE tollgate.batches AS b
    SET due_at = clock_timestamp() + @hold::interval, looks = b.looks + 1
    FROM due WHERE b.id = due.id
    RETURNING b.*
)
SELECT {batch b} FROM mine AS b JOIN tollgate.files AS f ON f.id = b.file_id
ORDER BY b.id;

-- name: batch_look
UPDATE tollgate.batches SET looked_at = clock_timestamp()
WHERE id = @num::bigint AND state = 'open' AND looked_at <= clock_timestamp() - @every::interval;

-- name: batch_progress
UPDATE tollgate.batches SET picture = @picture::bytea, due_at = clock_timestamp() + @again::interval
WHERE id = @num::bigint AND state <> 'ended';

-- name: batch_end
UPDATE tollgate.batches SET state = 'ended', picture = @picture::bytea WHERE id = @num::bigint AND state = 'open';
