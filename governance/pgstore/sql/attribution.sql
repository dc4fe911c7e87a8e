-- What clients said about their requests. It shares no statement with money.

-- name: attribution_add
-- A repeat changes nothing. The tags were checked, so that jsonb can hold them; the rest is bytes.
INSERT INTO ledger.attribution (attempt_id, request_id, tags, metadata, raw_usage)
SELECT a.attempt_id, a.request_id, a.tags::jsonb, a.metadata, a.raw_usage
FROM unnest(
    @attempts::text[]::uuid[], @requests::text[]::uuid[], @tags::text[], @metadata::bytea[], @raw_usage::bytea[]
) AS a (attempt_id, request_id, tags, metadata, raw_usage)
ON CONFLICT (attempt_id) DO NOTHING;
