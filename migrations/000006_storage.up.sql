-- The ledger at size: blocks of rows that are sealed by a chain of hashes, roll-ups that are derived with the same bound, and
-- what is kept of months that are dropped.
--
-- Rows are committed in no order that an id could have. What orders them is (epoch, xid, seq), up to the oldest transaction
-- that still runs: nothing that commits later can come before it. Everything below that mark is sealed once and summed once;
-- whoever needs the sums of now adds the few rows above it, in the same snapshot.
SET LOCAL lock_timeout = '5s';

-- Attempts below this id were dropped, months at a time and the oldest first.
ALTER TABLE ledger.state ADD COLUMN kept_from uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';

-- How far rows are sealed. One row.
CREATE TABLE ledger.seal_mark (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number    bigint NOT NULL DEFAULT 0, -- of the newest block
    hash      bytea NOT NULL DEFAULT '', -- of the newest block
    epoch     int NOT NULL DEFAULT 1,
    until_xid xid8 NOT NULL DEFAULT '0', -- the first transaction that is not sealed
    -- Every row that is not sealed has a greater seq, whether it is committed or not: the transactions from until_xid on drew
    -- theirs later. It lets few pages be read where an index over transactions would burden each row.
    floor_seq bigint NOT NULL DEFAULT 0,
    -- Transactions from next_xmax on draw numbers beyond next_seq, and those that were not over when known_seq was noted
    -- beyond known_seq.
    known_seq bigint NOT NULL DEFAULT 0,
    next_xmax xid8 NOT NULL DEFAULT '0',
    next_seq  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO ledger.seal_mark DEFAULT VALUES;

CREATE TABLE ledger.blocks (
    number       bigint PRIMARY KEY, -- from 1, without gaps
    epoch        int NOT NULL,
    from_xid     xid8 NOT NULL,
    until_xid    xid8 NOT NULL, -- exclusive
    first_seq    bigint NOT NULL,
    last_seq     bigint NOT NULL,
    settled_from timestamptz NOT NULL,
    settled_to   timestamptz NOT NULL, -- inclusive
    rows         bigint NOT NULL,
    cost         bigint NOT NULL,
    hash         bytea NOT NULL,
    sealed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The rows of a block, apart for the months of their attempts: when a month is dropped, its hashes stay and the chain can be
-- followed through them.
CREATE TABLE ledger.block_parts (
    block bigint NOT NULL,
    month date NOT NULL,
    rows  bigint NOT NULL,
    cost  bigint NOT NULL,
    hash  bytea NOT NULL,
    PRIMARY KEY (block, month)
);
CREATE INDEX block_parts_month ON ledger.block_parts (month);

-- Sums of sealed rows by the UTC hour in which they were settled. The month is that of the attempts, so that a check can tell
-- what was dropped. All attempts of a line lie between first_id and last_id.
CREATE TABLE ledger.hours (
    hour            timestamptz NOT NULL,
    organization_id bigint NOT NULL,
    team_id         bigint NOT NULL,
    key_id          bigint NOT NULL,
    user_id         bigint NOT NULL,
    model_id        bigint NOT NULL,
    target_id       bigint NOT NULL,
    model           text NOT NULL,
    provider        text NOT NULL,
    month           date NOT NULL,
    first_id        uuid NOT NULL,
    last_id         uuid NOT NULL,
    rows            bigint NOT NULL,
    requests        bigint NOT NULL, -- forwarded attempts
    input_tokens    bigint NOT NULL,
    output_tokens   bigint NOT NULL,
    cost            bigint NOT NULL, -- nano-dollars
    PRIMARY KEY (hour, organization_id, key_id, team_id, user_id, model_id, target_id, model, provider, month)
) WITH (fillfactor = 80);
CREATE INDEX hours_organization ON ledger.hours (organization_id, hour);

-- The same by UTC day.
CREATE TABLE ledger.days (LIKE ledger.hours INCLUDING COMMENTS);
ALTER TABLE ledger.days RENAME COLUMN hour TO day;
ALTER TABLE ledger.days ADD PRIMARY KEY (day, organization_id, key_id, team_id, user_id, model_id, target_id, model, provider, month);
ALTER TABLE ledger.days SET (fillfactor = 80);
CREATE INDEX days_organization ON ledger.days (organization_id, day);

-- The hours again, without teams, keys and users: what a whole platform comes to hour by hour is a fraction of their lines.
CREATE TABLE ledger.tenant_hours (LIKE ledger.hours INCLUDING COMMENTS);
ALTER TABLE ledger.tenant_hours ADD PRIMARY KEY (hour, organization_id, key_id, team_id, user_id, model_id, target_id, model, provider, month);
ALTER TABLE ledger.tenant_hours SET (fillfactor = 80);
CREATE INDEX tenant_hours_organization ON ledger.tenant_hours (organization_id, hour);

-- What the rows of dropped months had booked on windows, where sums and checks now start.
CREATE TABLE ledger.openings (
    limit_id     bigint NOT NULL,
    subject      bigint NOT NULL,
    window_start timestamptz NOT NULL,
    spent        bigint NOT NULL,
    over         bigint NOT NULL, -- the sum of what attempts used beyond what they had reserved
    PRIMARY KEY (limit_id, subject, window_start)
);

-- The month that is about to be dropped, and how far its rows were read for that. It is read in steps: one snapshot of a whole
-- month would keep dead rows of meters alive, and one transaction would hold up the seals. One row.
CREATE TABLE ledger.dropping (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    month      date NOT NULL DEFAULT '-infinity',
    sealed     bigint NOT NULL DEFAULT 0, -- rows that its blocks have
    rows       bigint NOT NULL DEFAULT 0, -- rows that were read
    cost       bigint NOT NULL DEFAULT 0, -- of these
    after_id   uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000', -- the row that was read last
    after_kind text NOT NULL DEFAULT '',
    read       boolean NOT NULL DEFAULT false -- to its end
);
INSERT INTO ledger.dropping DEFAULT VALUES;

-- What that month adds to the openings, as far as it was read.
CREATE TABLE ledger.dropping_openings (LIKE ledger.openings INCLUDING INDEXES);

CREATE TABLE ledger.dropped_months (
    month      date PRIMARY KEY,
    rows       bigint NOT NULL,
    cost       bigint NOT NULL,
    dropped_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The UTC month that an attempt's id is of.
CREATE FUNCTION ledger.month_of(id uuid) RETURNS date
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT date_trunc('month', to_timestamp(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint / 1000)
        AT TIME ZONE 'UTC')::date
$$;

-- What of a row is sealed: everything. The columns are named, so that one that is added later does not change what was. It
-- needs a session in UTC with ISO dates.
CREATE FUNCTION ledger.row_digest(r ledger.rows) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT sha256(convert_to(ROW(r.attempt_id, r.kind, r.epoch, r.xid, r.seq, r.request_id, r.attempt,
        r.organization_id, r.organization_public_id, r.organization_name, r.team_id, r.team_public_id, r.team_name,
        r.key_id, r.key_public_id, r.key_name, r.user_id, r.user_public_id, r.user_name, r.end_user_id,
        r.route, r.model_id, r.model, r.provider, r.target_id, r.upstream_model, r.price_id, r.unpriced,
        r.outcome, r.usage_source, r.quantities, r.unit_prices, r.cost,
        r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes, r.leg_reserved, r.leg_actual,
        r.process_id, r.admitted_at, r.settled_at, r.actor, r.reason, r.corrects_attempt, r.corrects_kind)::text, 'UTF8'))
$$;

-- The hash of a block, from that of its predecessor and those of its parts.
CREATE FUNCTION ledger.block_hash(previous bytea, number bigint, epoch int, from_xid xid8, until_xid xid8, parts bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT sha256(previous || convert_to(concat_ws(' ', number, epoch, from_xid, until_xid), 'UTF8') || parts) $$;

-- Seals the rows below the oldest transaction that still runs, about p_limit at most, as one block, and adds them to the
-- roll-ups. No block: there is nothing to seal, or another caller seals. Whoever holds the mark is the only one; the number of
-- the block is the condition that makes a second one of it impossible.
CREATE FUNCTION ledger.seal(p_limit int, OUT block_number bigint, OUT block_rows bigint, OUT block_digest bytea)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET timezone = 'UTC'
SET datestyle = 'ISO, YMD'
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    m       ledger.seal_mark;
    drawn   bigint;
    seen    pg_snapshot;
    present int;
    top     xid8;
    bound   xid8;
    cut     xid8;
    lowest  xid8;
    waiting bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rows are sealed by what is running now, not by an old snapshot' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- First how many numbers are drawn, then our own transaction id, then who is running: whoever drew one of those numbers
    -- had an id before us. The end of a snapshot would not do, since running transactions may lie beyond it.
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'rows are sealed in a transaction of its own' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    -- A sequence that was never drawn from already says 1.
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO drawn FROM ledger.row_seq AS s;
    SELECT s.* INTO m FROM ledger.seal_mark AS s FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT pg_current_snapshot() INTO seen;
    SELECT s.epoch INTO present FROM ledger.state AS s;
    IF m.next_xmax <= pg_snapshot_xmin(seen) AND m.known_seq < drawn THEN
        m.known_seq := m.next_seq;
        m.next_xmax := pg_current_xact_id();
        m.next_seq := drawn;
    END IF;
    IF m.epoch < present
       AND NOT EXISTS (SELECT FROM ledger.rows AS r WHERE r.seq > m.floor_seq AND r.epoch = m.epoch AND r.xid >= m.until_xid) THEN
        -- To the next epoch that has rows: a database may have been restored twice in a row.
        m.epoch := least(present, (SELECT min(r.epoch) FROM ledger.rows AS r WHERE r.seq > m.floor_seq AND r.epoch > m.epoch));
        m.until_xid := '0';
        m.next_xmax := '0';
    END IF;
    -- Nothing of an earlier epoch is running any more.
    top := CASE WHEN m.epoch < present THEN '18446744073709551615' ELSE pg_snapshot_xmin(seen) END;

    bound := top;
    SELECT r.xid INTO cut FROM ledger.rows AS r
    WHERE r.seq > m.floor_seq AND r.epoch = m.epoch AND r.xid >= m.until_xid AND r.xid < top
    ORDER BY r.xid OFFSET p_limit LIMIT 1;
    IF FOUND THEN
        -- A transaction is not divided.
        SELECT r.xid INTO lowest FROM ledger.rows AS r
        WHERE r.seq > m.floor_seq AND r.epoch = m.epoch AND r.xid >= m.until_xid AND r.xid < top
        ORDER BY r.xid LIMIT 1;
        bound := CASE WHEN cut > lowest THEN cut ELSE (cut::text::numeric + 1)::text::xid8 END;
    END IF;

    WITH sealed AS MATERIALIZED (
        SELECT r.xid, r.seq, r.attempt_id, ledger.month_of(r.attempt_id) AS month, r.settled_at,
            date_trunc('hour', r.settled_at, 'UTC') AS hour, r.organization_id, r.team_id, r.key_id, r.user_id, r.model_id,
            r.target_id, r.model, r.provider, (r.kind IN ('usage', 'expiry'))::int AS requests,
            ledger.used(7::smallint, r.quantities, 0) AS input_tokens, ledger.used(8::smallint, r.quantities, 0) AS output_tokens,
            r.cost, ledger.row_digest(r) AS digest
        FROM ledger.rows AS r
        WHERE r.seq > m.floor_seq AND r.epoch = m.epoch AND r.xid >= m.until_xid AND r.xid < bound
    ), parts AS (
        INSERT INTO ledger.block_parts AS p (block, month, rows, cost, hash)
        SELECT m.number + 1, s.month, count(*), sum(s.cost), sha256(string_agg(s.digest, '' ORDER BY s.xid, s.seq))
        FROM sealed AS s
        GROUP BY s.month
        RETURNING p.month, p.rows, p.cost, p.hash
    ), hourly AS (
        SELECT s.hour, s.organization_id, s.team_id, s.key_id, s.user_id, s.model_id, s.target_id, s.model, s.provider, s.month,
            min(s.attempt_id::text)::uuid AS first_id, max(s.attempt_id::text)::uuid AS last_id, count(*) AS rows,
            sum(s.requests) AS requests, sum(s.input_tokens) AS input_tokens, sum(s.output_tokens) AS output_tokens, sum(s.cost) AS cost
        FROM sealed AS s
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
    ), hours_added AS (
        INSERT INTO ledger.hours AS h
        SELECT a.* FROM hourly AS a
        ON CONFLICT (hour, organization_id, key_id, team_id, user_id, model_id, target_id, model, provider, month) DO UPDATE
        SET first_id = least(h.first_id, excluded.first_id), last_id = greatest(h.last_id, excluded.last_id),
            rows = h.rows + excluded.rows, requests = h.requests + excluded.requests,
            input_tokens = h.input_tokens + excluded.input_tokens, output_tokens = h.output_tokens + excluded.output_tokens,
            cost = h.cost + excluded.cost
    ), days_added AS (
        INSERT INTO ledger.days AS d
        SELECT date_trunc('day', a.hour, 'UTC'), a.organization_id, a.team_id, a.key_id, a.user_id, a.model_id, a.target_id,
            a.model, a.provider, a.month, min(a.first_id::text)::uuid, max(a.last_id::text)::uuid, sum(a.rows), sum(a.requests),
            sum(a.input_tokens), sum(a.output_tokens), sum(a.cost)
        FROM hourly AS a
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
        ON CONFLICT (day, organization_id, key_id, team_id, user_id, model_id, target_id, model, provider, month) DO UPDATE
        SET first_id = least(d.first_id, excluded.first_id), last_id = greatest(d.last_id, excluded.last_id),
            rows = d.rows + excluded.rows, requests = d.requests + excluded.requests,
            input_tokens = d.input_tokens + excluded.input_tokens, output_tokens = d.output_tokens + excluded.output_tokens,
            cost = d.cost + excluded.cost
    ), tenants_added AS (
        INSERT INTO ledger.tenant_hours AS d
        SELECT a.hour, a.organization_id, 0, 0, 0, a.model_id, a.target_id,
            a.model, a.provider, a.month, min(a.first_id::text)::uuid, max(a.last_id::text)::uuid, sum(a.rows), sum(a.requests),
            sum(a.input_tokens), sum(a.output_tokens), sum(a.cost)
        FROM hourly AS a
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
        ON CONFLICT (hour, organization_id, key_id, team_id, user_id, model_id, target_id, model, provider, month) DO UPDATE
        SET first_id = least(d.first_id, excluded.first_id), last_id = greatest(d.last_id, excluded.last_id),
            rows = d.rows + excluded.rows, requests = d.requests + excluded.requests,
            input_tokens = d.input_tokens + excluded.input_tokens, output_tokens = d.output_tokens + excluded.output_tokens,
            cost = d.cost + excluded.cost
    )
    INSERT INTO ledger.blocks AS b (number, epoch, from_xid, until_xid, first_seq, last_seq, settled_from, settled_to, rows, cost, hash)
    SELECT m.number + 1, m.epoch, m.until_xid, bound, s.first_seq, s.last_seq, s.settled_from, s.settled_to, p.rows, p.cost,
        ledger.block_hash(m.hash, m.number + 1, m.epoch, m.until_xid, bound, p.hashes)
    FROM (
        SELECT sum(p.rows) AS rows, sum(p.cost) AS cost, string_agg(p.hash, '' ORDER BY p.month) AS hashes FROM parts AS p
    ) AS p
    CROSS JOIN (
        SELECT min(s.seq) AS first_seq, max(s.seq) AS last_seq, min(s.settled_at) AS settled_from, max(s.settled_at) AS settled_to
        FROM sealed AS s
    ) AS s
    WHERE p.rows > 0
    RETURNING b.number, b.rows, b.hash INTO block_number, block_rows, block_digest;

    IF block_number IS NOT NULL THEN
        m.number := block_number;
        m.hash := block_digest;
        m.until_xid := bound;
    END IF;
    SELECT min(r.seq) INTO waiting FROM ledger.rows AS r
    WHERE r.seq > m.floor_seq AND (r.epoch, r.xid) >= (m.epoch, m.until_xid);
    UPDATE ledger.seal_mark AS s
    SET number = m.number, hash = m.hash, epoch = m.epoch, until_xid = m.until_xid, known_seq = m.known_seq,
        next_xmax = m.next_xmax, next_seq = m.next_seq, floor_seq = greatest(m.floor_seq, least(m.known_seq, waiting - 1))
    WHERE block_number IS NOT NULL OR s.epoch <> m.epoch OR s.known_seq <> m.known_seq OR s.next_xmax <> m.next_xmax;
END
$$;

-- Notes where rows lie that have come since the last call, for the index of places. Returns how many ranges it noted; none,
-- where a vacuum does the same at this moment.
CREATE FUNCTION ledger.note_places() RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
BEGIN
    RETURN (
        SELECT sum(brin_summarize_new_values(i.inhrelid::regclass))
        FROM pg_inherits AS i
        WHERE i.inhparent = 'ledger.rows_place'::regclass
    );
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;

-- Reads on in the month that is being dropped: about p_rows rows, whose bookings on windows go to dropping_openings. False: it
-- has a provisional row.
CREATE FUNCTION ledger.read_month(p_month date, p_rows int) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    d    ledger.dropping;
    n    bigint;
    paid bigint;
    last text;
    open boolean;
BEGIN
    SELECT x.* INTO d FROM ledger.dropping AS x;
    EXECUTE format(
        'WITH part AS MATERIALIZED (
            SELECT r.attempt_id, r.kind, r.usage_source, r.cost, r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes,
                r.leg_reserved, r.leg_actual
            FROM ledger.%1$I AS r
            WHERE (r.attempt_id, r.kind) > ($1, $2)
            ORDER BY r.attempt_id, r.kind
            LIMIT $3
        ), booked AS (
            INSERT INTO ledger.dropping_openings AS o (limit_id, subject, window_start, spent, over)
            SELECT g.limit_id, g.subject, g.window_start, sum(g.actual), sum(greatest(0, g.actual - g.reserved))
            FROM part AS r
            CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes, r.leg_reserved, r.leg_actual)
                AS g (limit_id, subject, window_start, class, reserved, actual)
            WHERE g.class BETWEEN 6 AND 9
            GROUP BY 1, 2, 3
            ON CONFLICT (limit_id, subject, window_start) DO UPDATE SET spent = o.spent + excluded.spent, over = o.over + excluded.over
        )
        SELECT count(*), coalesce(sum(r.cost), 0), max((r.attempt_id::text || r.kind) COLLATE "C"),
            coalesce(bool_or(r.usage_source = ''reservation'' AND r.kind IN (''usage'', ''expiry'') AND NOT EXISTS (
                SELECT FROM ledger.%1$I AS a WHERE a.attempt_id = r.attempt_id AND a.kind = ''late_adjustment'')), false)
        FROM part AS r',
        'rows_' || to_char(p_month, 'YYYYMM'))
    INTO n, paid, last, open USING d.after_id, d.after_kind, p_rows;
    UPDATE ledger.dropping AS x
    SET rows = x.rows + n, cost = x.cost + paid, read = n < p_rows,
        after_id = coalesce(left(last, 36)::uuid, x.after_id), after_kind = coalesce(substr(last, 37), x.after_kind);
    RETURN NOT open;
END
$$;

-- Drops the oldest month of the ledger if it ended at least p_keep_days ago, in several calls, each in a transaction of its own:
-- it is read in steps of p_rows rows first. What its rows had booked on windows goes to the openings; its blocks' hashes and its
-- roll-ups stay. A month with an unsealed row, an attempt in flight or a provisional row is not dropped, nor one that is younger
-- than 92 days, whatever is asked for. outcome says what this call did: it has 'read' on, has 'dropped' the month, or has found
-- that its rows are not those that were sealed ('differs'). NULL: there is none to drop, or another session is in the way.
CREATE FUNCTION ledger.drop_month(p_keep_days int, p_rows int, OUT oldest date, OUT outcome text)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET lock_timeout = '100ms'
SET enable_seqscan = off
AS $$
DECLARE
    suffix  text;
    next_id uuid;
    parent  text;
    d       ledger.dropping;
    m       ledger.seal_mark;
    sealed_ bigint;
    dirty   boolean;
BEGIN
    SELECT x.* INTO d FROM ledger.dropping AS x FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT to_date(right(c.relname, 6), 'YYYYMM') INTO oldest
    FROM pg_inherits AS i
    JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ledger.rows'::regclass AND c.relname ~ '^rows_\d{6}$'
    ORDER BY 1 LIMIT 1;
    IF oldest IS NULL
       OR oldest + interval '1 month' > (clock_timestamp() AT TIME ZONE 'UTC') - make_interval(days => greatest(p_keep_days, 92)) THEN
        RETURN;
    END IF;
    suffix := to_char(oldest, 'YYYYMM');
    next_id := ledger.id_at((oldest + interval '1 month') AT TIME ZONE 'UTC');
    IF EXISTS (SELECT FROM ledger.reservations AS v WHERE v.attempt_id < next_id AND v.state = 'open')
       OR EXISTS (SELECT FROM ledger.rows_default AS r WHERE r.attempt_id < next_id) THEN
        RETURN;
    END IF;
    SELECT coalesce(sum(p.rows), 0) INTO sealed_ FROM ledger.block_parts AS p WHERE p.month = oldest;
    IF d.month <> oldest OR d.sealed <> sealed_ THEN
        -- It is another month than the last time, or a row has come late: from the beginning.
        DELETE FROM ledger.dropping_openings;
        DELETE FROM ledger.dropping;
        INSERT INTO ledger.dropping (month, sealed) VALUES (oldest, sealed_) RETURNING * INTO d;
    END IF;
    IF NOT d.read THEN
        IF ledger.read_month(oldest, p_rows) THEN
            outcome := 'read';
        ELSE
            UPDATE ledger.dropping SET month = DEFAULT;
        END IF;
        RETURN;
    END IF;

    -- From here on it is short: nobody adds a row, nobody seals one.
    SELECT s.* INTO m FROM ledger.seal_mark AS s FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    EXECUTE format('LOCK TABLE ledger.%I IN SHARE MODE', 'rows_' || suffix);
    EXECUTE format('SELECT EXISTS (SELECT FROM ledger.%I AS r WHERE r.seq > $1 AND (r.epoch, r.xid) >= ($2, $3))', 'rows_' || suffix)
    INTO dirty USING m.floor_seq, m.epoch, m.until_xid;
    SELECT coalesce(sum(p.rows), 0) INTO sealed_ FROM ledger.block_parts AS p WHERE p.month = oldest;
    IF dirty OR d.sealed <> sealed_ THEN
        RETURN; -- a row has come late
    END IF;
    IF d.rows <> d.sealed THEN
        UPDATE ledger.dropping SET month = DEFAULT;
        outcome := 'differs';
        RETURN;
    END IF;
    INSERT INTO ledger.openings AS o
    SELECT x.* FROM ledger.dropping_openings AS x
    ON CONFLICT (limit_id, subject, window_start) DO UPDATE SET spent = o.spent + excluded.spent, over = o.over + excluded.over;
    DELETE FROM ledger.dropping_openings;
    INSERT INTO ledger.dropped_months (month, rows, cost) VALUES (oldest, d.rows, d.cost);
    UPDATE ledger.state SET kept_from = next_id;
    FOREACH parent IN ARRAY ARRAY['rows', 'attribution'] LOOP
        CONTINUE WHEN to_regclass(format('ledger.%I', parent || '_' || suffix)) IS NULL;
        EXECUTE format('ALTER TABLE ledger.%I DETACH PARTITION ledger.%I', parent, parent || '_' || suffix);
        EXECUTE format('DROP TABLE ledger.%I', parent || '_' || suffix);
    END LOOP;
    outcome := 'dropped';
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    outcome := NULL;
END
$$;

CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON ledger.blocks FOR EACH ROW EXECUTE FUNCTION ledger.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON ledger.blocks FOR EACH STATEMENT EXECUTE FUNCTION ledger.refuse_change();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE ON ledger.block_parts FOR EACH ROW EXECUTE FUNCTION ledger.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON ledger.block_parts FOR EACH STATEMENT EXECUTE FUNCTION ledger.refuse_change();

REVOKE EXECUTE ON FUNCTION ledger.month_of, ledger.row_digest, ledger.block_hash, ledger.seal, ledger.note_places,
    ledger.read_month, ledger.drop_month FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ledger.month_of, ledger.row_digest, ledger.block_hash, ledger.seal, ledger.note_places
    TO tollgate_gateway, tollgate_control;
GRANT EXECUTE ON FUNCTION ledger.drop_month TO tollgate_control;
GRANT SELECT ON ledger.seal_mark, ledger.blocks, ledger.block_parts, ledger.hours, ledger.tenant_hours, ledger.days, ledger.openings, ledger.dropped_months
    TO tollgate_gateway, tollgate_control;

-- I01, from the openings on.
CREATE OR REPLACE VIEW audit.i01_window_spent AS
WITH booked AS (
    SELECT g.limit_id, g.subject, g.window_start, sum(g.actual) AS spent
    FROM (
        SELECT l.limit_id, l.subject, l.window_start, l.actual FROM audit.row_legs AS l WHERE l.class BETWEEN 6 AND 9
        UNION ALL
        SELECT o.limit_id, o.subject, o.window_start, o.spent FROM ledger.openings AS o
    ) AS g
    GROUP BY g.limit_id, g.subject, g.window_start
), stored AS (
    SELECT m.limit_id, m.subject, m.window_start, m.spent FROM ledger.meters AS m WHERE m.spent <> 0
)
SELECT limit_id, subject, window_start, coalesce(s.spent, 0) AS stored, coalesce(b.spent, 0) AS booked
FROM stored AS s
FULL JOIN booked AS b USING (limit_id, subject, window_start)
WHERE coalesce(s.spent, 0) <> coalesce(b.spent, 0);

-- I06. What a correction corrects may have been dropped.
CREATE OR REPLACE VIEW audit.i06_reservation_and_row AS
SELECT r.attempt_id, v.state, r.kind
FROM ledger.reservations AS v
JOIN ledger.rows AS r ON r.attempt_id = v.attempt_id AND r.kind IN ('usage', 'expiry')
UNION ALL
SELECT a.attempt_id, 'missing', a.kind
FROM ledger.rows AS a
WHERE a.kind = 'late_adjustment'
  AND NOT EXISTS (SELECT FROM ledger.rows AS r WHERE r.attempt_id = a.attempt_id AND r.kind IN ('usage', 'expiry'))
UNION ALL
SELECT a.attempt_id, 'missing', a.kind
FROM ledger.rows AS a
WHERE a.kind = 'correction' AND a.corrects_attempt >= (SELECT s.kept_from FROM ledger.state AS s)
  AND NOT EXISTS (SELECT FROM ledger.rows AS r WHERE r.attempt_id = a.corrects_attempt AND r.kind = a.corrects_kind);

-- I13, with the overshoots of dropped months.
CREATE OR REPLACE VIEW audit.i13_budget_overshoot AS
WITH windows AS (
    SELECT m.limit_id, m.subject, m.window_start, m.spent, m.held, l.amount
    FROM ledger.meters AS m
    JOIN tollgate.limits AS l ON l.id = m.limit_id
    WHERE l.kind = 'budget' AND l.amount IS NOT NULL AND l.mode = 'enforce' AND l.enforcement = 'exact'
      AND (m.window_start > l.updated_at OR l.version = 1)
      AND m.spent + m.held > l.amount
), overshot AS (
    SELECT w.limit_id, w.subject, w.window_start, sum(greatest(0, g.actual - g.reserved)) AS over
    FROM windows AS w
    JOIN audit.row_legs AS g USING (limit_id, subject, window_start)
    GROUP BY w.limit_id, w.subject, w.window_start
)
SELECT w.*, coalesce(o.over, 0) + coalesce(d.over, 0) AS over
FROM windows AS w
LEFT JOIN overshot AS o USING (limit_id, subject, window_start)
LEFT JOIN ledger.openings AS d USING (limit_id, subject, window_start)
WHERE w.spent + w.held > w.amount + coalesce(o.over, 0) + coalesce(d.over, 0);

-- The same as audit.millionths, of the units from the seventeenth on.
CREATE FUNCTION audit.further_millionths(q bigint[], p bigint[]) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT coalesce(sum(u.quantity::numeric * u.price), 0) FROM unnest(q[17:], p[17:]) AS u (quantity, price)
    WHERE u.quantity <> 0 AND u.price <> 0
$$;

-- Millionths of nano-dollars that quantities come to. Sixteen units are spelled out in one expression, which is inlined: a
-- sub-query for each row took most of the time of a check.
CREATE FUNCTION audit.millionths(q bigint[], p bigint[]) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN q[1] <> 0 AND p[1] <> 0 THEN q[1]::numeric * p[1] ELSE 0 END
        + CASE WHEN q[2] <> 0 AND p[2] <> 0 THEN q[2]::numeric * p[2] ELSE 0 END
        + CASE WHEN q[3] <> 0 AND p[3] <> 0 THEN q[3]::numeric * p[3] ELSE 0 END
        + CASE WHEN q[4] <> 0 AND p[4] <> 0 THEN q[4]::numeric * p[4] ELSE 0 END
        + CASE WHEN q[5] <> 0 AND p[5] <> 0 THEN q[5]::numeric * p[5] ELSE 0 END
        + CASE WHEN q[6] <> 0 AND p[6] <> 0 THEN q[6]::numeric * p[6] ELSE 0 END
        + CASE WHEN q[7] <> 0 AND p[7] <> 0 THEN q[7]::numeric * p[7] ELSE 0 END
        + CASE WHEN q[8] <> 0 AND p[8] <> 0 THEN q[8]::numeric * p[8] ELSE 0 END
        + CASE WHEN q[9] <> 0 AND p[9] <> 0 THEN q[9]::numeric * p[9] ELSE 0 END
        + CASE WHEN q[10] <> 0 AND p[10] <> 0 THEN q[10]::numeric * p[10] ELSE 0 END
        + CASE WHEN q[11] <> 0 AND p[11] <> 0 THEN q[11]::numeric * p[11] ELSE 0 END
        + CASE WHEN q[12] <> 0 AND p[12] <> 0 THEN q[12]::numeric * p[12] ELSE 0 END
        + CASE WHEN q[13] <> 0 AND p[13] <> 0 THEN q[13]::numeric * p[13] ELSE 0 END
        + CASE WHEN q[14] <> 0 AND p[14] <> 0 THEN q[14]::numeric * p[14] ELSE 0 END
        + CASE WHEN q[15] <> 0 AND p[15] <> 0 THEN q[15]::numeric * p[15] ELSE 0 END
        + CASE WHEN q[16] <> 0 AND p[16] <> 0 THEN q[16]::numeric * p[16] ELSE 0 END
        + CASE WHEN cardinality(q) > 16 THEN audit.further_millionths(q, p) ELSE 0 END
$$;

-- The cost of a row, from its own quantities and unit prices, whatever the price book says today. A reservation was rounded
-- up. An adjustment makes, together with the row that it adjusts, what was used cost its own prices. What lies nearer than a
-- half needs no rounding to be right.
CREATE OR REPLACE VIEW audit.row_cost AS
SELECT r.attempt_id, r.kind, r.usage_source, r.cost, audit.half_even(s.millionths) AS computed
FROM ledger.rows AS r
CROSS JOIN LATERAL (SELECT audit.millionths(r.quantities, r.unit_prices) AS millionths OFFSET 0) AS s
WHERE r.kind IN ('usage', 'expiry')
  AND abs(r.cost * 1000000::numeric - s.millionths) >= 500000
  AND r.cost <> audit.half_even(s.millionths)
  AND (r.usage_source <> 'reservation' OR r.cost <> ceil(s.millionths / 1000000))
UNION ALL
SELECT a.attempt_id, a.kind, a.usage_source, r.cost + a.cost, audit.half_even(s.millionths)
FROM ledger.rows AS a
JOIN ledger.rows AS r ON r.attempt_id = a.attempt_id AND r.kind IN ('usage', 'expiry')
CROSS JOIN LATERAL (
    SELECT coalesce(sum((coalesce(b.quantity, 0) + u.quantity)::numeric * u.price), 0) AS millionths
    FROM unnest(a.quantities, a.unit_prices) WITH ORDINALITY AS u (quantity, price, unit)
    LEFT JOIN unnest(r.quantities) WITH ORDINALITY AS b (quantity, unit) USING (unit)
) AS s
WHERE a.kind = 'late_adjustment'
  AND (a.cost <> 0 OR 0 <> ANY (a.quantities))
  AND r.cost + a.cost <> audit.half_even(s.millionths);

-- What was done to buckets during the last day, one line an event: taken by an admission, or given back (less than nothing:
-- charged on top) by what ended it. A batch settles first and admits then, at one instant.
CREATE OR REPLACE VIEW audit.bucket_events AS
WITH legs AS (
    SELECT g.limit_id, g.subject, g.reserved, g.actual, g.admitted_at, g.settled_at
    FROM audit.row_legs AS g
    WHERE g.settled_at > now() - interval '1 day' AND g.class < 6
    UNION ALL
    SELECT g.limit_id, g.subject, g.reserved, NULL, g.admitted_at, NULL FROM audit.open_legs AS g WHERE g.class < 6
    UNION ALL
    SELECT g.limit_id, g.subject, g.reserved, 0, r.admitted_at, r.closed_at
    FROM ledger.reservations AS r
    CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_classes, r.leg_reserved) AS g (limit_id, subject, class, reserved)
    WHERE r.state = 'released' AND r.admitted_at IS NOT NULL AND g.class < 6
)
SELECT limit_id, subject, admitted_at AS at, 1 AS step, reserved AS taken, 0 AS back FROM legs WHERE reserved > 0
UNION ALL
SELECT limit_id, subject, settled_at, 0, 0, reserved - actual FROM legs WHERE actual <> reserved;

REVOKE EXECUTE ON FUNCTION audit.millionths, audit.further_millionths FROM PUBLIC;
GRANT EXECUTE ON FUNCTION audit.millionths, audit.further_millionths TO tollgate_gateway, tollgate_control;
