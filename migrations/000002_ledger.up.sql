-- The ledger: the meters of limits, the reservations of attempts in flight, and the append-only rows that everything
-- else can be recomputed from.
--
-- An attempt has a reservation while it is in flight and a row once it has ended; one statement replaces the first by
-- the second. Only functions of this schema write here.
SET LOCAL lock_timeout = '5s';

CREATE SCHEMA ledger;
GRANT USAGE ON SCHEMA ledger TO tollgate_gateway, tollgate_control;

-- One row.
CREATE TABLE ledger.state (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    -- Transaction ids restart after a dump and restore, so rows are ordered by (epoch, xid, seq). A process that registers
    -- with a server of another identity begins a new epoch.
    epoch             int NOT NULL DEFAULT 1,
    system_identifier bigint NOT NULL,
    -- No reservation below this id is open, nor will one be: expiry scans from here.
    low_water         uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000'
);
INSERT INTO ledger.state (system_identifier) SELECT system_identifier FROM pg_control_system();

-- The gateway processes. The row is the lease of all reservations of its process: silent for longer than the lease, or
-- stopped, it is dead and anybody may expire what it left open.
CREATE TABLE ledger.processes (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node          text NOT NULL,          -- host or pod, for people
    boot          uuid NOT NULL UNIQUE,   -- made anew by each start of a process
    version       text NOT NULL,
    lease_seconds int NOT NULL CHECK (lease_seconds BETWEEN 2 AND 3600),
    started_at    timestamptz NOT NULL,
    beat_at       timestamptz NOT NULL,
    stopped_at    timestamptz
) WITH (fillfactor = 50);

-- The counted state of one limit for one subject, and for budgets of one window. What it means follows from the limit,
-- whose identity (kind, metric, per, window) never changes:
--   rate:        level, refilled_at
--   budget:      spent, held, carried; one row for each window
--   concurrency: held
CREATE TABLE ledger.meters (
    limit_id     bigint NOT NULL,
    subject      bigint NOT NULL,                          -- row number of the organization, key, model, … that is counted
    window_start timestamptz NOT NULL DEFAULT '-infinity', -- '-infinity' for buckets, slots and total windows
    -- What a bucket holds, in units × ticks of the limit's period (see ledger.ticks), as of refilled_at. Below zero: debt.
    level        bigint NOT NULL DEFAULT 0 CHECK (level BETWEEN -4611686018427387904 AND 4611686018427387904),
    refilled_at  timestamptz NOT NULL DEFAULT '-infinity', -- a whole tick; '-infinity': never used, the bucket is full
    -- In the metric's unit. Admitted iff carried + spent + held + new ≤ amount.
    spent        bigint NOT NULL DEFAULT 0 CHECK (spent BETWEEN 0 AND 4611686018427387904),
    held         bigint NOT NULL DEFAULT 0 CHECK (held BETWEEN 0 AND 4611686018427387904),
    carried      bigint NOT NULL DEFAULT 0 CHECK (carried BETWEEN 0 AND 4611686018427387904), -- overspent by earlier windows
    PRIMARY KEY (limit_id, subject, window_start)
) WITH (
    fillfactor = 20, -- room for HOT updates of the few hot rows
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

-- One row for each attempt in flight, and for a day one for each attempt that was released. A settled or expired attempt
-- has no reservation any more, but a row.
--
-- There is deliberately no index on expiry: it would cost two thirds of the throughput.
CREATE TABLE ledger.reservations (
    attempt_id  uuid NOT NULL,
    state       text NOT NULL CHECK (state IN ('open', 'released')),
    process_id  bigint NOT NULL,      -- ledger.processes; 0 for a tombstone
    admitted_at timestamptz,          -- NULL: a tombstone, left by a release that overtook its reserve
    expires_at  timestamptz,          -- hard expiry, even if the owner lives
    closed_at   timestamptz,          -- NULL while open

    -- Whom and what it belongs to, copied at admission. Numbers are 0 and texts empty where there is none.
    request_id        uuid NOT NULL,
    attempt           int NOT NULL,
    organization_id   bigint NOT NULL,
    organization_public_id text NOT NULL,
    organization_name text NOT NULL,
    team_id           bigint NOT NULL,
    team_public_id    text NOT NULL,
    team_name         text NOT NULL,
    key_id            bigint NOT NULL,
    key_public_id     text NOT NULL,
    key_name          text NOT NULL,
    user_id           bigint NOT NULL,
    user_public_id    text NOT NULL,
    user_name         text NOT NULL,
    end_user_id       bigint NOT NULL,
    route             text NOT NULL,
    model_id          bigint NOT NULL,
    model             text NOT NULL,  -- the public name that was asked for
    provider          text NOT NULL,
    target_id         bigint NOT NULL,
    upstream_model    text NOT NULL,
    price_id          bigint NOT NULL, -- tollgate.price_versions; 0: unpriced
    unpriced          boolean NOT NULL,

    -- What expiry books. One entry for each governance.Unit, by its number.
    quantities  bigint[] NOT NULL,
    unit_prices bigint[] NOT NULL,    -- nano-dollars per million units
    cost        bigint NOT NULL CHECK (cost BETWEEN 0 AND 1000000000000000), -- nano-dollars

    -- The legs: what was taken from which meter, in the metric's unit. Parallel arrays. A class is kind and metric of the
    -- limit in one number: rate of 1 requests, 2 tokens, 3 input tokens, 4 output tokens, 5 cost; budget of 6 tokens,
    -- 7 input tokens, 8 output tokens, 9 cost; 10 slots.
    leg_limits   bigint[] NOT NULL,
    leg_subjects bigint[] NOT NULL,
    leg_windows  timestamptz[] NOT NULL,
    leg_classes  smallint[] NOT NULL,
    leg_reserved bigint[] NOT NULL,

    PRIMARY KEY (attempt_id)
) WITH (
    -- Each row lives for one request only.
    autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_insert_threshold = -1
);

CREATE SEQUENCE ledger.row_seq;

-- The ledger proper: what finance reads. Rows are only ever added.
--
-- usage and expiry: one of both for each forwarded attempt. late_adjustment: at most one for an attempt, the difference
-- between its expiry row and what was really used. correction and credit have an attempt_id of their own.
CREATE TABLE ledger.rows (
    attempt_id  uuid NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('usage', 'expiry', 'late_adjustment', 'correction', 'credit')),

    -- Order of commit as far as it can be known: sealing and roll-ups read up to pg_snapshot_xmin.
    epoch       int NOT NULL,
    xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq         bigint NOT NULL DEFAULT nextval('ledger.row_seq'),

    -- Whom and what it belongs to, as in ledger.reservations.
    request_id        uuid NOT NULL,
    attempt           int NOT NULL,
    organization_id   bigint NOT NULL,
    organization_public_id text NOT NULL,
    organization_name text NOT NULL,
    team_id           bigint NOT NULL,
    team_public_id    text NOT NULL,
    team_name         text NOT NULL,
    key_id            bigint NOT NULL,
    key_public_id     text NOT NULL,
    key_name          text NOT NULL,
    user_id           bigint NOT NULL,
    user_public_id    text NOT NULL,
    user_name         text NOT NULL,
    end_user_id       bigint NOT NULL,
    route             text NOT NULL,
    model_id          bigint NOT NULL,
    model             text NOT NULL,
    provider          text NOT NULL,
    target_id         bigint NOT NULL,
    upstream_model    text NOT NULL,
    price_id          bigint NOT NULL,
    unpriced          boolean NOT NULL,

    -- What was used and what it costs. In late adjustments and corrections all are differences and may be negative.
    outcome      text NOT NULL,
    usage_source text NOT NULL CHECK (usage_source IN ('provider', 'estimate', 'reservation', 'zero', 'cache')),
    quantities   bigint[] NOT NULL,
    unit_prices  bigint[] NOT NULL,
    cost         bigint NOT NULL CHECK (cost BETWEEN -1000000000000000 AND 1000000000000000),

    -- The legs, parallel arrays as in ledger.reservations. At admitted_at a meter lost reserved; at settled_at it got back
    -- reserved − actual, or lost actual − reserved more. The reserved of a late adjustment or correction is 0.
    leg_limits   bigint[] NOT NULL,
    leg_subjects bigint[] NOT NULL,
    leg_windows  timestamptz[] NOT NULL,
    leg_classes  smallint[] NOT NULL,
    leg_reserved bigint[] NOT NULL,
    leg_actual   bigint[] NOT NULL,

    process_id  bigint NOT NULL,
    admitted_at timestamptz NOT NULL,
    settled_at  timestamptz NOT NULL, -- the database's clock after the locks were held; a row belongs to this period

    -- Corrections and credits only.
    actor            text NOT NULL DEFAULT '',
    reason           text NOT NULL DEFAULT '',
    corrects_attempt uuid,
    corrects_kind    text,

    PRIMARY KEY (attempt_id, kind),
    CHECK (kind IN ('late_adjustment', 'correction', 'credit') OR cost >= 0 AND 0 <= ALL (quantities)),
    CHECK (0 <= ALL (leg_reserved))
) PARTITION BY RANGE (attempt_id);
-- Lists: newest first is ORDER BY settled_at DESC, seq DESC. Every settlement pays for every index here, so there is one by
-- key, and one by end user for those who name any; lists of organizations, teams, models and providers find their keys and
-- hours in the roll-ups. The last one is about places in the file: rows lie nearly in the order of these columns.
CREATE INDEX rows_key ON ledger.rows (key_id, settled_at, seq);
CREATE INDEX rows_end_user ON ledger.rows (end_user_id, settled_at, seq) WHERE end_user_id <> 0;
CREATE INDEX rows_place ON ledger.rows USING brin (seq, settled_at, request_id uuid_minmax_multi_ops);

-- What clients said about their requests. It shares no transaction and no reference with money, and may be erased.
CREATE TABLE ledger.attribution (
    attempt_id      uuid NOT NULL,
    request_id      uuid NOT NULL,
    recorded_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    tags            jsonb NOT NULL DEFAULT '{}',
    metadata        bytea, -- JSON as the client sent it
    raw_usage       bytea, -- the provider's usage object as it came
    PRIMARY KEY (attempt_id)
) PARTITION BY RANGE (attempt_id);

-- The least id that governance's ids can have at an instant.
CREATE FUNCTION ledger.id_at(at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid $$;

-- Ticks in the period of a bucket: what one unit is worth in ledger.meters.level. A tick is 1 µs, and 1 ms where amounts
-- of money or long periods would pass 63 bits. It depends on members of the limit's identity alone, so that changing
-- amount or burst never changes what a stored level means.
CREATE FUNCTION ledger.ticks(metric text, per_seconds int) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT per_seconds::bigint * CASE WHEN metric = 'cost' OR per_seconds >= 3600 THEN 1000 ELSE 1000000 END $$;

CREATE FUNCTION ledger.refuse_change() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'ledger rows are never changed: % on %', tg_op, tg_table_name USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON ledger.rows FOR EACH ROW EXECUTE FUNCTION ledger.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON ledger.rows FOR EACH STATEMENT EXECUTE FUNCTION ledger.refuse_change();

CREATE TABLE ledger.rows_default PARTITION OF ledger.rows DEFAULT;
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON ledger.rows_default FOR EACH STATEMENT EXECUTE FUNCTION ledger.refuse_change();
CREATE TABLE ledger.attribution_default PARTITION OF ledger.attribution DEFAULT;

-- Makes the partitions of a month of UTC, where they are missing. Returns how many it made. A table is made first and attached
-- then, which locks the parent less than making it as a partition.
CREATE FUNCTION ledger.add_month(month date) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    first  CONSTANT timestamp := date_trunc('month', month::timestamp);
    parent text;
    part   text;
    made   int := 0;
BEGIN
    FOREACH parent IN ARRAY ARRAY['rows', 'attribution'] LOOP
        part := parent || '_' || to_char(first, 'YYYYMM');
        CONTINUE WHEN to_regclass('ledger.' || part) IS NOT NULL;
        EXECUTE format('CREATE TABLE ledger.%I (LIKE ledger.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part, parent);
        IF parent = 'rows' THEN
            EXECUTE format('CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON ledger.%I '
                'FOR EACH STATEMENT EXECUTE FUNCTION ledger.refuse_change()', part);
        END IF;
        EXECUTE format('ALTER TABLE ledger.%I ATTACH PARTITION ledger.%I FOR VALUES FROM (%L) TO (%L)', parent, part,
            ledger.id_at(first AT TIME ZONE 'UTC'), ledger.id_at((first + interval '1 month') AT TIME ZONE 'UTC'));
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;

-- Makes the partitions of this month and the three that follow, where they are missing. Returns how many it made.
CREATE FUNCTION ledger.ensure_partitions() RETURNS int
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT sum(ledger.add_month((date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') + make_interval(months => i))::date))::int
    FROM generate_series(0, 3) AS i
$$;
SELECT ledger.ensure_partitions();

REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA ledger FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA ledger TO tollgate_gateway, tollgate_control;
GRANT SELECT ON ledger.state, ledger.processes, ledger.meters, ledger.reservations, ledger.rows, ledger.attribution
    TO tollgate_gateway, tollgate_control;
GRANT INSERT ON ledger.attribution TO tollgate_gateway, tollgate_control;
GRANT UPDATE, DELETE ON ledger.attribution TO tollgate_control;
