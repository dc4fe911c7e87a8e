-- Lists and sums of the ledger, for people. Rows are never changed, so a page may be found first and read then.
--
-- What several statements need to say alike is a part: {narrow r} is the part "narrow", about the table r.

-- part: narrow
-- What a filter leaves of the rows of a table, or of the lines of a roll-up.
(@organization::bigint = 0 OR x.organization_id = @organization::bigint)
  AND (@team::bigint = 0 OR x.team_id = @team::bigint)
  AND (@key::bigint = 0 OR x.key_id = @key::bigint)
  AND (@user::bigint = 0 OR x.user_id = @user::bigint)
  AND (@model::bigint = 0 OR x.model_id = @model::bigint)
  AND (@model_name::text = '' OR x.model = @model_name::text)
  AND (NOT @by_target::boolean OR x.target_id = ANY (@targets::bigint[]))
  AND (@provider_name::text = '' OR x.provider = @provider_name::text)

-- part: settled
-- What a period leaves of the rows of a table.
(@from::timestamptz IS NULL OR x.settled_at >= @from::timestamptz)
  AND (@to::timestamptz IS NULL OR x.settled_at < @to::timestamptz)

-- part: piece
-- A row as a piece of a summary.
x.organization_id, x.team_id, x.key_id, x.user_id, x.model, x.provider, x.settled_at AS at, x.cost,
    (x.kind IN ('usage', 'expiry'))::int AS requests,
    ledger.used(7::smallint, x.quantities, 0) AS input_tokens, ledger.used(8::smallint, x.quantities, 0) AS output_tokens

-- part: summed
-- The groups of a summary, made of its pieces. Ids group; names are today's.
SELECT coalesce(o.public_id, '') AS organization, coalesce(o.name, '') AS organization_name,
    coalesce(t.public_id, '') AS team, coalesce(t.name, '') AS team_name,
    coalesce(k.public_id, '') AS key, coalesce(k.name, '') AS key_name,
    coalesce(u.public_id, '') AS user_id, coalesce(u.name, '') AS user_name, g.model, g.provider,
    coalesce(to_char(g.day, 'YYYY-MM-DD'), '') AS day,
    coalesce(to_char(g.hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), '') AS hour,
    g.cost, g.requests, g.input_tokens, g.output_tokens
FROM (
    SELECT
        CASE WHEN 'organization' = ANY (@by::text[]) THEN p.organization_id END AS organization_id,
        CASE WHEN 'team' = ANY (@by::text[]) THEN p.team_id END AS team_id,
        CASE WHEN 'key' = ANY (@by::text[]) THEN p.key_id END AS key_id,
        CASE WHEN 'user' = ANY (@by::text[]) THEN p.user_id END AS user_id,
        CASE WHEN 'model' = ANY (@by::text[]) THEN p.model ELSE '' END AS model,
        CASE WHEN 'provider' = ANY (@by::text[]) THEN p.provider ELSE '' END AS provider,
        CASE WHEN 'day' = ANY (@by::text[]) THEN (p.at AT TIME ZONE @zone::text)::date END AS day,
        CASE WHEN 'hour' = ANY (@by::text[]) THEN date_trunc('hour', p.at, @zone::text) END AS hour,
        sum(p.cost)::bigint AS cost, sum(p.requests)::bigint AS requests,
        sum(p.input_tokens)::bigint AS input_tokens, sum(p.output_tokens)::bigint AS output_tokens
    FROM pieces AS p
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
    LIMIT @count::bigint
) AS g
LEFT JOIN tollgate.organizations AS o ON o.id = g.organization_id
LEFT JOIN tollgate.teams AS t ON t.id = g.team_id
LEFT JOIN tollgate.virtual_keys AS k ON k.id = g.key_id
LEFT JOIN tollgate.users AS u ON u.id = g.user_id
ORDER BY g.day, g.hour, g.cost DESC, 1, 3, 5, 7, g.model, g.provider

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

-- name: spend_plans
-- For this transaction only: no partition is read from end to end, whatever its statistics say.
SELECT set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true);

-- name: spend_ordered_plans
-- Nor is anything read that has to be sorted: an index has a key's rows in their order, and a page needs few.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true);

-- name: spend_tail
-- The newest of the rows that are not sealed yet, and therefore in no roll-up. Few pages have them.
SELECT r.attempt_id, r.kind, r.settled_at, r.seq
FROM ledger.rows AS r
WHERE r.seq > (SELECT s.floor_seq FROM ledger.seal_mark AS s)
  AND (r.epoch, r.xid) >= (SELECT s.epoch, s.until_xid FROM ledger.seal_mark AS s)
  AND {narrow r}
  AND {settled r}
  AND (@before_at::timestamptz IS NULL OR (r.settled_at, r.seq) < (@before_at::timestamptz, @before_seq::bigint))
ORDER BY r.settled_at DESC, r.seq DESC
LIMIT @count::bigint;

-- name: spend_days
-- The newest days that have sealed rows of a filter, before an instant.
SELECT d.day AS start, sum(d.rows)::bigint AS rows
FROM ledger.days AS d
WHERE {narrow d}
  AND (@from::timestamptz IS NULL OR d.day > @from::timestamptz - interval '1 day')
  AND (@until::timestamptz IS NULL OR d.day < @until::timestamptz)
GROUP BY d.day
ORDER BY d.day DESC
LIMIT @spans::bigint;

-- name: spend_hours
-- The newest hours that have sealed rows of a filter, before an instant and from a day on.
SELECT h.hour AS start, sum(h.rows)::bigint AS rows
FROM ledger.hours AS h
WHERE {narrow h}
  AND h.hour >= @since::timestamptz
  AND (@from::timestamptz IS NULL OR h.hour > @from::timestamptz - interval '1 hour')
  AND (@until::timestamptz IS NULL OR h.hour < @until::timestamptz)
GROUP BY h.hour
ORDER BY h.hour DESC
LIMIT @spans::bigint;

-- name: spend_page
-- One page, newest first, of sealed rows between two instants. The roll-ups know which keys have any, and in which partitions; an
-- index has those of a key in order.
SELECT r.attempt_id, r.kind, r.settled_at, r.seq
FROM (
    SELECT h.hour, h.organization_id, h.key_id, min(h.first_id::text)::uuid AS first_id, max(h.last_id::text)::uuid AS last_id
    FROM ledger.hours AS h
    WHERE {narrow h}
      AND h.hour > @since::timestamptz - interval '1 hour' AND h.hour < @until::timestamptz
    GROUP BY h.hour, h.organization_id, h.key_id
) AS h
CROSS JOIN LATERAL (
    SELECT r.attempt_id, r.kind, r.settled_at, r.seq
    FROM ledger.rows AS r
    WHERE r.key_id = h.key_id AND r.settled_at >= greatest(h.hour, @since::timestamptz)
      AND r.settled_at < least(h.hour + interval '1 hour', @until::timestamptz)
      AND r.organization_id = h.organization_id AND r.attempt_id BETWEEN h.first_id AND h.last_id
      AND (r.epoch, r.xid) < (SELECT s.epoch, s.until_xid FROM ledger.seal_mark AS s)
      AND {narrow r}
      AND {settled r}
      AND (@before_at::timestamptz IS NULL OR (r.settled_at, r.seq) < (@before_at::timestamptz, @before_seq::bigint))
    ORDER BY r.settled_at DESC, r.seq DESC
    LIMIT @count::bigint
) AS r
ORDER BY r.settled_at DESC, r.seq DESC
LIMIT @count::bigint;

-- name: spend_page_end_user
-- One page of what some end users did, which no roll-up knows: they have an index of their own.
SELECT r.attempt_id, r.kind, r.settled_at, r.seq
FROM ledger.rows AS r
WHERE r.end_user_id = ANY (@end_users::bigint[]) AND r.end_user_id <> 0
  AND {narrow r}
  AND {settled r}
  AND (@before_at::timestamptz IS NULL OR (r.settled_at, r.seq) < (@before_at::timestamptz, @before_seq::bigint))
ORDER BY r.settled_at DESC, r.seq DESC
LIMIT @count::bigint;

-- name: spend_page_request
-- One page of the attempts of a request and what corrects them. None is older than the request by more than clocks differ.
SELECT r.attempt_id, r.kind, r.settled_at, r.seq
FROM ledger.rows AS r
WHERE r.request_id = @request::text::uuid AND r.attempt_id >= @from_id::text::uuid
  AND (NOT @by_end_user::boolean OR r.end_user_id = ANY (@end_users::bigint[]))
  AND {narrow r}
  AND {settled r}
  AND (@before_at::timestamptz IS NULL OR (r.settled_at, r.seq) < (@before_at::timestamptz, @before_seq::bigint))
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
-- Exact sums in one snapshot: whole days and hours from the roll-ups, what is left of hours from sealed rows of the keys
-- that were at work in them, and the rows that are not sealed. An hour that two days of the zone share is left to the rows. Where no
-- team, key or user matters there are fewer lines to read.
WITH span AS MATERIALIZED (
    SELECT f.at AS since, t.at AS until,
        date_trunc('hour', f.at + interval '1 hour' - interval '1 microsecond', 'UTC') AS first_hour,
        date_trunc('hour', t.at, 'UTC') AS last_hour,
        CASE WHEN @whole_days::boolean THEN date_trunc('day', f.at + interval '1 day' - interval '1 microsecond', 'UTC')
             ELSE 'infinity' END AS first_day,
        CASE WHEN @whole_days::boolean THEN date_trunc('day', t.at, 'UTC') ELSE 'infinity' END AS last_day
    FROM (SELECT coalesce(@from::timestamptz, '-infinity') AS at) AS f, (SELECT coalesce(@to::timestamptz, 'infinity') AS at) AS t
), shared AS MATERIALIZED (
    SELECT x.hour
    FROM span AS s
    CROSS JOIN generate_series(
        (SELECT greatest(s.first_hour, d.day) FROM ledger.days AS d ORDER BY d.day LIMIT 1),
        (SELECT least(s.last_hour - interval '1 hour', d.day + interval '23 hours') FROM ledger.days AS d ORDER BY d.day DESC LIMIT 1),
        interval '1 hour') AS x (hour)
    WHERE CASE WHEN 'hour' = ANY (@by::text[])
            THEN date_trunc('hour', x.hour, @zone::text) <> date_trunc('hour', x.hour + interval '59 minutes 59.999999 seconds', @zone::text)
        WHEN 'day' = ANY (@by::text[])
            THEN (x.hour AT TIME ZONE @zone::text)::date <> ((x.hour + interval '59 minutes 59.999999 seconds') AT TIME ZONE @zone::text)::date
        ELSE false END
), gaps AS MATERIALIZED (
    SELECT s.since AS lo, least(s.first_hour, s.until) AS hi FROM span AS s WHERE s.since < least(s.first_hour, s.until)
    UNION ALL
    SELECT greatest(s.last_hour, s.first_hour), s.until FROM span AS s WHERE greatest(s.last_hour, s.first_hour) < s.until
    UNION ALL
    SELECT h.hour, h.hour + interval '1 hour' FROM shared AS h
), sums AS NOT MATERIALIZED (
    SELECT * FROM ledger.hours WHERE NOT @tenants::boolean
    UNION ALL
    SELECT * FROM ledger.tenant_hours WHERE @tenants::boolean
), pieces AS (
    SELECT d.organization_id, d.team_id, d.key_id, d.user_id, d.model, d.provider, d.day AS at, d.cost,
        d.requests AS requests, d.input_tokens AS input_tokens, d.output_tokens AS output_tokens
    FROM ledger.days AS d
    WHERE d.day >= (SELECT s.first_day FROM span AS s) AND d.day < (SELECT s.last_day FROM span AS s)
      AND {narrow d}
    UNION ALL
    SELECT h.organization_id, h.team_id, h.key_id, h.user_id, h.model, h.provider, h.hour AS at, h.cost,
        h.requests AS requests, h.input_tokens AS input_tokens, h.output_tokens AS output_tokens
    FROM sums AS h
    WHERE h.hour >= (SELECT s.first_hour FROM span AS s) AND h.hour < (SELECT least(s.first_day, s.last_hour) FROM span AS s)
      AND h.hour <> ALL (ARRAY(SELECT x.hour FROM shared AS x))
      AND {narrow h}
    UNION ALL
    SELECT h.organization_id, h.team_id, h.key_id, h.user_id, h.model, h.provider, h.hour AS at, h.cost,
        h.requests AS requests, h.input_tokens AS input_tokens, h.output_tokens AS output_tokens
    FROM sums AS h
    WHERE h.hour >= (SELECT greatest(s.last_day, least(s.first_day, s.last_hour)) FROM span AS s)
      AND h.hour < (SELECT s.last_hour FROM span AS s)
      AND h.hour <> ALL (ARRAY(SELECT x.hour FROM shared AS x))
      AND {narrow h}
    UNION ALL
    SELECT {piece r}
    FROM gaps AS x
    CROSS JOIN LATERAL (
        SELECT h.organization_id, h.key_id, min(h.first_id::text)::uuid AS first_id, max(h.last_id::text)::uuid AS last_id
        FROM ledger.hours AS h
        WHERE h.hour = date_trunc('hour', x.lo, 'UTC')
          AND {narrow h}
        GROUP BY h.organization_id, h.key_id
    ) AS k
    CROSS JOIN LATERAL (
        SELECT r.* FROM ledger.rows AS r
        WHERE r.key_id = k.key_id AND r.settled_at >= x.lo AND r.settled_at < x.hi
        AND r.organization_id = k.organization_id AND r.attempt_id BETWEEN k.first_id AND k.last_id
        OFFSET 0 -- each key by its index
    ) AS r
    WHERE (r.epoch, r.xid) < (SELECT s.epoch, s.until_xid FROM ledger.seal_mark AS s)
      AND {narrow r}
    UNION ALL
    SELECT {piece r}
    FROM ledger.rows AS r
    WHERE r.seq > (SELECT s.floor_seq FROM ledger.seal_mark AS s)
      AND (r.epoch, r.xid) >= (SELECT s.epoch, s.until_xid FROM ledger.seal_mark AS s)
      AND {narrow r}
      AND {settled r}
)
{summed};

-- name: spend_summary_rows
-- The same for what no roll-up knows: rows of end users, or of one request.
WITH pieces AS (
    SELECT {piece r}
    FROM ledger.rows AS r
    WHERE r.end_user_id = ANY (@end_users::bigint[]) AND r.end_user_id <> 0 AND @request::text = ''
      AND {narrow r}
      AND {settled r}
    UNION ALL
    SELECT {piece r}
    FROM ledger.rows AS r
    WHERE r.request_id = nullif(@request::text, '')::uuid AND r.attempt_id >= @from_id::text::uuid
      AND (NOT @by_end_user::boolean OR r.end_user_id = ANY (@end_users::bigint[]))
      AND {narrow r}
      AND {settled r}
)
{summed};
