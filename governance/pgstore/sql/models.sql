-- name: providers_read
-- An organization sees the platform's providers too, since they are offered to it.
SELECT p.id AS num, p.public_id AS id, p.version, p.created_at, p.updated_at, p.deleted_at,
    coalesce(p.organization_id, 0) AS organization_num, coalesce(o.public_id, '') AS organization_id,
    coalesce(o.name, '') AS organization_name,
    p.name, p.kind, p.base_url, p.price_provider, p.credential IS NOT NULL AS has_credential, p.credential
FROM tollgate.providers AS p
LEFT JOIN tollgate.organizations AS o ON o.id = p.organization_id
WHERE (@id::text = '' OR p.public_id = @id::text)
  AND (@num::bigint = 0 OR p.id = @num::bigint)
  AND (@bound::bigint = 0 OR p.organization_id = @bound::bigint OR p.organization_id IS NULL)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@provider::text = '' OR p.public_id = @provider::text)
  AND (@name::text = '' OR p.name = @name::text)
  AND (@deleted::boolean OR p.deleted_at IS NULL AND o.deleted_at IS NULL)
  AND p.id > @after::bigint
ORDER BY p.id
LIMIT @count::bigint;

-- name: providers_insert
INSERT INTO tollgate.providers (public_id, organization_id, name, kind, base_url, price_provider, credential)
VALUES (
    @public_id::text, @organization_num::bigint, @name::text, @kind::text, @base_url::text, @price_provider::text,
    @credential::bytea
)
RETURNING id;

-- name: providers_update
UPDATE tollgate.providers
SET name = @name::text, kind = @kind::text, base_url = @base_url::text, price_provider = @price_provider::text,
    credential = @credential::bytea, version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: providers_delete
UPDATE tollgate.providers SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: targets_read
-- A target lives as long as its provider.
SELECT t.id AS num, t.public_id AS id, t.version, t.created_at, t.updated_at, p.deleted_at,
    coalesce(p.organization_id, 0) AS organization_num, coalesce(o.public_id, '') AS organization_id,
    coalesce(o.name, '') AS organization_name,
    p.id AS provider_num, p.public_id AS provider_id, p.name AS provider_name, p.kind AS provider_kind,
    coalesce(nullif(p.price_provider, ''), p.name) AS price_provider, p.base_url, p.credential,
    t.upstream_model, t.on_disconnect, t.no_stream_options, t.dropped_members, t.max_output,
    coalesce(s.p99_output, 0) AS p99_output, coalesce(s.p95_rate, 0) AS p95_rate
FROM tollgate.targets AS t
JOIN tollgate.providers AS p ON p.id = t.provider_id
LEFT JOIN tollgate.organizations AS o ON o.id = p.organization_id
LEFT JOIN tollgate.output_statistics AS s ON s.target_id = t.id
WHERE (@id::text = '' OR t.public_id = @id::text)
  AND (@num::bigint = 0 OR t.id = @num::bigint)
  AND (@bound::bigint = 0 OR p.organization_id = @bound::bigint OR p.organization_id IS NULL)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@provider::text = '' OR p.public_id = @provider::text)
  AND (@name::text = '' OR t.upstream_model = @name::text)
  AND (@deleted::boolean OR p.deleted_at IS NULL AND o.deleted_at IS NULL)
  AND t.id > @after::bigint
ORDER BY t.id
LIMIT @count::bigint;

-- name: targets_ensure
INSERT INTO tollgate.targets (public_id, provider_id, upstream_model, max_output, no_stream_options)
VALUES (@public_id::text, @provider::bigint, @upstream_model::text, @max_output::bigint, @no_stream_options::boolean)
ON CONFLICT (provider_id, upstream_model) DO NOTHING;

-- name: targets_of
SELECT id FROM tollgate.targets WHERE provider_id = @provider::bigint AND upstream_model = @upstream_model::text;

-- name: targets_update
UPDATE tollgate.targets
SET on_disconnect = @on_disconnect::text, no_stream_options = @no_stream_options::boolean,
    dropped_members = @dropped_members::text[], max_output = @max_output::bigint,
    version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint;

-- name: models_read
-- Targets of deleted providers are gone from their models.
SELECT m.id AS num, m.public_id AS id, m.version, m.created_at, m.updated_at, m.deleted_at,
    coalesce(m.organization_id, 0) AS organization_num, coalesce(o.public_id, '') AS organization_id,
    coalesce(o.name, '') AS organization_name, m.name,
    t.targets_num, t.target_ids, t.providers_num, t.provider_ids, t.provider_names, t.upstream_models, t.weights, t.priorities
FROM tollgate.models AS m
LEFT JOIN tollgate.organizations AS o ON o.id = m.organization_id
CROSS JOIN LATERAL (
    SELECT array_agg(t.id ORDER BY mt.position) AS targets_num,
        array_agg(t.public_id ORDER BY mt.position) AS target_ids,
        array_agg(p.id ORDER BY mt.position) AS providers_num,
        array_agg(p.public_id ORDER BY mt.position) AS provider_ids,
        array_agg(p.name ORDER BY mt.position) AS provider_names,
        array_agg(t.upstream_model ORDER BY mt.position) AS upstream_models,
        array_agg(mt.weight::bigint ORDER BY mt.position) AS weights,
        array_agg(mt.priority::bigint ORDER BY mt.position) AS priorities
    FROM tollgate.model_targets AS mt
    JOIN tollgate.targets AS t ON t.id = mt.target_id
    JOIN tollgate.providers AS p ON p.id = t.provider_id
    WHERE mt.model_id = m.id AND p.deleted_at IS NULL
) AS t
WHERE (@id::text = '' OR m.public_id = @id::text)
  AND (@num::bigint = 0 OR m.id = @num::bigint)
  AND (@bound::bigint = 0 OR m.organization_id = @bound::bigint OR m.organization_id IS NULL)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@provider::text = '' OR @provider::text = ANY (t.provider_ids))
  AND (@name::text = '' OR m.name = @name::text)
  AND (@deleted::boolean OR m.deleted_at IS NULL AND o.deleted_at IS NULL)
  AND m.id > @after::bigint
ORDER BY m.id
LIMIT @count::bigint;

-- name: models_insert
INSERT INTO tollgate.models (public_id, organization_id, name)
VALUES (@public_id::text, @organization_num::bigint, @name::text)
RETURNING id;

-- name: models_update
UPDATE tollgate.models SET name = @name::text, version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: models_delete
UPDATE tollgate.models SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: model_targets_clear
DELETE FROM tollgate.model_targets WHERE model_id = @model::bigint;

-- name: model_targets_add
INSERT INTO tollgate.model_targets (model_id, target_id, position, weight, priority)
VALUES (@model::bigint, @target::bigint, @position::int, @weight::int, @priority::int);
