-- Lists and sums of the ledger, for people. Rows are never changed, so a page may be found first and read then.

-- name: spend_filter
-- Row numbers of what a filter names; 0: not named, -1: there is none. A team, key or user tells its organization, by
-- which the rows are indexed. Models and providers may be named by id or by the name that rows keep.
WITH named AS (
    SELECT
        CASE WHEN @team::text = '' THEN 0
             ELSE coalesce((SELECT id FROM tollgate.teams WHERE public_id = @team::text), -1) END AS team,
        CASE WHEN @key::text = '' THEN 0
             ELSE coalesce((SELECT id FROM tollgate.virtual_keys WHERE public_id = @key::text), -1) END AS key,
        CASE WHEN @user::text = '' THEN 0
             ELSE coalesce((SELECT id FROM tollgate.users WHERE public_id = @user::text), -1) END AS user_num
), owned AS (
    SELECT n.*,
        CASE WHEN @organization::text <> ''
                 THEN coalesce((SELECT id FROM tollgate.organizations WHERE public_id = @organization::text), -1)
             ELSE coalesce(
                 (SELECT organization_id FROM tollgate.virtual_keys WHERE id = n.key),
                 (SELECT organization_id FROM tollgate.teams WHERE id = n.team),
                 (SELECT organization_id FROM tollgate.users WHERE id = n.user_num), 0) END AS organization
    FROM named AS n
)
SELECT o.organization, o.team, o.key, o.user_num,
    CASE WHEN NOT starts_with(@model::text, 'model_') THEN 0
         ELSE coalesce((SELECT id FROM tollgate.models WHERE public_id = @model::text), -1) END AS model,
    ARRAY(
        SELECT t.id FROM tollgate.targets AS t JOIN tollgate.providers AS p ON p.id = t.provider_id
        WHERE p.public_id = @provider::text
    ) AS targets,
    ARRAY(
        SELECT e.id FROM tollgate.end_users AS e
        WHERE @end_user::text <> '' AND e.name = @end_user::text
          AND e.organization_id = ANY (CASE WHEN o.organization <> 0 THEN ARRAY[o.organization]
                                            ELSE ARRAY(SELECT id FROM tollgate.organizations) END)
    ) AS end_users
FROM owned AS o;

-- name: spend_page
-- One page, newest first, of rows that an organization, a team, a key or a request narrows: an index has them in order.
SELECT r.attempt_id, r.kind, r.settled_at, r.seq
FROM ledger.rows AS r
WHERE (@organization::bigint = 0 OR r.organization_id = @organization::bigint)
  AND (@team::bigint = 0 OR r.team_id = @team::bigint)
  AND (@key::bigint = 0 OR r.key_id = @key::bigint)
  AND (@user::bigint = 0 OR r.user_id = @user::bigint)
  AND (@model::bigint = 0 OR r.model_id = @model::bigint)
  AND (@model_name::text = '' OR r.model = @model_name::text)
  AND (NOT @by_target::boolean OR r.target_id = ANY (@targets::bigint[]))
  AND (@provider_name::text = '' OR r.provider = @provider_name::text)
  AND (NOT @by_end_user::boolean OR r.end_user_id = ANY (@end_users::bigint[]))
  AND (@request::text = '' OR r.request_id = nullif(@request::text, '')::uuid)
  AND (@from::timestamptz IS NULL OR r.settled_at >= @from::timestamptz)
  AND (@to::timestamptz IS NULL OR r.settled_at < @to::timestamptz)
  AND (@before_at::timestamptz IS NULL OR (r.settled_at, r.seq) < (@before_at::timestamptz, @before_seq::bigint))
ORDER BY r.settled_at DESC, r.seq DESC
LIMIT @count::bigint;

-- name: spend_page_platform
-- The same over all organizations: a page of each by its index, and of these the newest. An index over all rows would
-- cost every settlement.
SELECT r.attempt_id, r.kind, r.settled_at, r.seq
FROM tollgate.organizations AS o
CROSS JOIN LATERAL (
    SELECT r.attempt_id, r.kind, r.settled_at, r.seq
    FROM ledger.rows AS r
    WHERE r.organization_id = o.id
      AND (@model::bigint = 0 OR r.model_id = @model::bigint)
      AND (@model_name::text = '' OR r.model = @model_name::text)
      AND (NOT @by_target::boolean OR r.target_id = ANY (@targets::bigint[]))
      AND (@provider_name::text = '' OR r.provider = @provider_name::text)
      AND (NOT @by_end_user::boolean OR r.end_user_id = ANY (@end_users::bigint[]))
      AND (@from::timestamptz IS NULL OR r.settled_at >= @from::timestamptz)
      AND (@to::timestamptz IS NULL OR r.settled_at < @to::timestamptz)
      AND (@before_at::timestamptz IS NULL OR (r.settled_at, r.seq) < (@before_at::timestamptz, @before_seq::bigint))
    ORDER BY r.settled_at DESC, r.seq DESC
    LIMIT @count::bigint
) AS r
ORDER BY r.settled_at DESC, r.seq DESC
LIMIT @count::bigint;

-- name: spend_rows
-- The rows of a page in its order, with what is kept beside them: the person's name, the price's id, the client's tags.
SELECT r.attempt_id, r.kind, r.request_id, r.attempt,
    r.organization_id, r.organization_public_id, r.organization_name,
    r.team_id, r.team_public_id, r.team_name, r.key_id, r.key_public_id, r.key_name,
    r.user_id, r.user_public_id, r.user_name, r.end_user_id, r.route, r.model_id, r.model, r.provider, r.target_id,
    r.upstream_model, r.price_id, r.unpriced, r.outcome, r.usage_source, r.quantities, r.unit_prices, r.cost,
    r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_reserved, r.leg_actual, r.admitted_at, r.settled_at,
    r.actor, r.reason, coalesce(r.corrects_attempt::text, '') AS corrects_attempt,
    coalesce(r.corrects_kind, '') AS corrects_kind,
    coalesce(e.name, '') AS end_user, coalesce(p.public_id, '') AS price, coalesce(a.tags, '{}') AS tags
FROM unnest(@attempts::text[]::uuid[], @kinds::text[]) WITH ORDINALITY AS k (attempt_id, kind, position)
JOIN ledger.rows AS r ON r.attempt_id = k.attempt_id AND r.kind = k.kind
LEFT JOIN tollgate.end_users AS e ON e.id = r.end_user_id
LEFT JOIN tollgate.price_versions AS p ON p.id = r.price_id
LEFT JOIN ledger.attribution AS a ON a.attempt_id = r.attempt_id
ORDER BY k.position;

-- name: spend_limits
-- What the legs of rows and reservations refer to; deleted limits keep their row.
SELECT id, public_id, scope_type, kind, metric FROM tollgate.limits WHERE id = ANY (@nums::bigint[]);

-- name: spend_summary
-- Exact sums of rows, in one snapshot. Ids group; names are today's. Forwarded attempts count as requests, once each.
-- Input tokens are the units 0 to 5 and output tokens 6 to 9 of governance.Unit; an array's first element is unit 0.
WITH grouped AS (
    SELECT
        CASE WHEN 'organization' = ANY (@by::text[]) THEN r.organization_public_id ELSE '' END AS organization,
        CASE WHEN 'team' = ANY (@by::text[]) THEN r.team_public_id ELSE '' END AS team,
        CASE WHEN 'key' = ANY (@by::text[]) THEN r.key_public_id ELSE '' END AS key,
        CASE WHEN 'user' = ANY (@by::text[]) THEN r.user_public_id ELSE '' END AS user_id,
        CASE WHEN 'model' = ANY (@by::text[]) THEN r.model ELSE '' END AS model,
        CASE WHEN 'provider' = ANY (@by::text[]) THEN r.provider ELSE '' END AS provider,
        CASE WHEN 'day' = ANY (@by::text[]) THEN to_char(r.settled_at AT TIME ZONE @zone::text, 'YYYY-MM-DD') ELSE '' END AS day,
        CASE WHEN 'hour' = ANY (@by::text[])
             THEN to_char(date_trunc('hour', r.settled_at, @zone::text) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
             ELSE '' END AS hour,
        sum(r.cost)::bigint AS cost,
        count(*) FILTER (WHERE r.kind IN ('usage', 'expiry')) AS requests,
        sum(coalesce(r.quantities[1], 0) + coalesce(r.quantities[2], 0) + coalesce(r.quantities[3], 0)
            + coalesce(r.quantities[4], 0) + coalesce(r.quantities[5], 0) + coalesce(r.quantities[6], 0))::bigint AS input_tokens,
        sum(coalesce(r.quantities[7], 0) + coalesce(r.quantities[8], 0) + coalesce(r.quantities[9], 0)
            + coalesce(r.quantities[10], 0))::bigint AS output_tokens
    FROM ledger.rows AS r
    -- Joined so that a range of time can be read by the organizations' index.
    JOIN tollgate.organizations AS o ON o.id = r.organization_id
    WHERE (@organization::bigint = 0 OR o.id = @organization::bigint)
      AND (@team::bigint = 0 OR r.team_id = @team::bigint)
      AND (@key::bigint = 0 OR r.key_id = @key::bigint)
      AND (@user::bigint = 0 OR r.user_id = @user::bigint)
      AND (@model::bigint = 0 OR r.model_id = @model::bigint)
      AND (@model_name::text = '' OR r.model = @model_name::text)
      AND (NOT @by_target::boolean OR r.target_id = ANY (@targets::bigint[]))
      AND (@provider_name::text = '' OR r.provider = @provider_name::text)
      AND (NOT @by_end_user::boolean OR r.end_user_id = ANY (@end_users::bigint[]))
      AND (@request::text = '' OR r.request_id = nullif(@request::text, '')::uuid)
      AND (@from::timestamptz IS NULL OR r.settled_at >= @from::timestamptz)
      AND (@to::timestamptz IS NULL OR r.settled_at < @to::timestamptz)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
    LIMIT @count::bigint
)
SELECT g.organization, coalesce(o.name, '') AS organization_name, g.team, coalesce(t.name, '') AS team_name,
    g.key, coalesce(k.name, '') AS key_name, g.user_id, coalesce(u.name, '') AS user_name,
    g.model, g.provider, g.day, g.hour, g.cost, g.requests, g.input_tokens, g.output_tokens
FROM grouped AS g
LEFT JOIN tollgate.organizations AS o ON o.public_id = g.organization
LEFT JOIN tollgate.teams AS t ON t.public_id = g.team
LEFT JOIN tollgate.virtual_keys AS k ON k.public_id = g.key
LEFT JOIN tollgate.users AS u ON u.public_id = g.user_id
ORDER BY g.day, g.hour, g.cost DESC, g.organization, g.team, g.key, g.user_id, g.model, g.provider;
