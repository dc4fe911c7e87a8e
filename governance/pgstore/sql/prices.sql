-- name: prices_read
-- Newest first.
SELECT v.id AS num, v.public_id AS id, v.provider, v.upstream_model, v.effective_from, v.free, v.source, v.created_at,
    u.service_tiers, u.from_inputs, u.units, u.per_millions
FROM tollgate.price_versions AS v
CROSS JOIN LATERAL (
    SELECT array_agg(service_tier ORDER BY service_tier, from_input, unit) AS service_tiers,
        array_agg(from_input ORDER BY service_tier, from_input, unit) AS from_inputs,
        array_agg(unit::bigint ORDER BY service_tier, from_input, unit) AS units,
        array_agg(per_million ORDER BY service_tier, from_input, unit) AS per_millions
    FROM tollgate.price_units
    WHERE price_id = v.id
) AS u
WHERE (@id::text = '' OR v.public_id = @id::text)
  AND (@provider::text = '' OR v.provider = @provider::text)
  AND (@upstream_model::text = '' OR v.upstream_model = @upstream_model::text)
  AND (@after::bigint = 0 OR v.id < @after::bigint)
ORDER BY v.id DESC
LIMIT @count::bigint;

-- name: prices_of
-- What a change has added, in the order of its list.
SELECT v.id AS num, v.public_id AS id, v.provider, v.upstream_model, v.effective_from, v.free, v.source, v.created_at,
    u.service_tiers, u.from_inputs, u.units, u.per_millions
FROM tollgate.price_versions AS v
CROSS JOIN LATERAL (
    SELECT array_agg(service_tier ORDER BY service_tier, from_input, unit) AS service_tiers,
        array_agg(from_input ORDER BY service_tier, from_input, unit) AS from_inputs,
        array_agg(unit::bigint ORDER BY service_tier, from_input, unit) AS units,
        array_agg(per_million ORDER BY service_tier, from_input, unit) AS per_millions
    FROM tollgate.price_units
    WHERE price_id = v.id
) AS u
WHERE v.public_id = ANY (@ids::text[])
ORDER BY v.id;

-- name: prices_empty
SELECT NOT EXISTS (SELECT FROM tollgate.price_versions);

-- name: prices_add
INSERT INTO tollgate.price_versions (public_id, provider, upstream_model, effective_from, free, source)
SELECT v.id, v.provider, v.model, coalesce(v.effective_from, statement_timestamp()), v.free, v.source
FROM unnest(
    @ids::text[], @providers::text[], @models::text[], @from::timestamptz[], @free::boolean[], @sources::text[]
) WITH ORDINALITY AS v (id, provider, model, effective_from, free, source, position)
ORDER BY v.position;

-- name: price_units_add
INSERT INTO tollgate.price_units (price_id, service_tier, from_input, unit, per_million)
SELECT v.id, u.service_tier, u.from_input, u.unit::smallint, u.per_million
FROM unnest(
    @owners::text[], @services::text[], @from_inputs::bigint[], @units::bigint[], @per_millions::bigint[]
) AS u (owner, service_tier, from_input, unit, per_million)
JOIN tollgate.price_versions AS v ON v.public_id = u.owner;
