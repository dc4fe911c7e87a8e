-- The verbs of the ledger. Everything that changes money happens in ledger.batch.
SET LOCAL lock_timeout = '5s';

-- The start of the window of a budget that contains an instant; '-infinity' for what has no windows. Where clocks are put
-- back over midnight a day has two midnights and begins with the first.
CREATE FUNCTION ledger.window_start(window_type text, period text, zone text, seconds bigint, anchor timestamptz, at timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    midnight timestamptz;
BEGIN
    IF window_type = 'fixed' THEN
        RETURN date_bin(make_interval(secs => seconds), at, anchor);
    ELSIF window_type IS DISTINCT FROM 'calendar' THEN
        RETURN '-infinity';
    END IF;
    midnight := date_trunc(period, at, coalesce(zone, 'UTC'));
    IF (midnight - interval '1 hour') AT TIME ZONE coalesce(zone, 'UTC') = midnight AT TIME ZONE coalesce(zone, 'UTC') THEN
        RETURN midnight - interval '1 hour';
    END IF;
    RETURN midnight;
END
$$;

-- How many whole windows lie between the window that starts at earlier and the one that starts at later.
CREATE FUNCTION ledger.windows_between(window_type text, period text, zone text, seconds bigint, earlier timestamptz, later timestamptz)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    a date := (earlier AT TIME ZONE coalesce(zone, 'UTC'))::date;
    b date := (later AT TIME ZONE coalesce(zone, 'UTC'))::date;
    months bigint := (extract(year FROM b) - extract(year FROM a)) * 12 + extract(month FROM b) - extract(month FROM a);
BEGIN
    RETURN CASE
        WHEN window_type = 'fixed' THEN (extract(epoch FROM later - earlier) / seconds)::bigint
        WHEN period = 'day' THEN b - a
        WHEN period = 'week' THEN (b - a) / 7
        WHEN period = 'month' THEN months
        WHEN period = 'quarter' THEN months / 3
        ELSE months / 12
    END - 1;
END
$$;

-- Kind and metric of a limit in one number; see ledger.reservations.
CREATE FUNCTION ledger.leg_class(kind text, metric text) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE kind
        WHEN 'rate' THEN array_position(ARRAY['requests', 'tokens', 'input_tokens', 'output_tokens', 'cost'], metric)
        WHEN 'budget' THEN 5 + array_position(ARRAY['tokens', 'input_tokens', 'output_tokens', 'cost'], metric)
        ELSE 10
    END::smallint
$$;

-- Makes meters that are missing, in the order of their keys, in a transaction of its own, so that an insert never waits
-- while a batch holds locks. A new window begins with what its predecessor overspent, less one amount for each empty
-- window between them; the lock on the predecessor makes a settlement there either come before, or see the new window.
-- Where that lock cannot be had in time the meter is left out, and who asked for it asks again.
CREATE FUNCTION ledger.make_meters(p_limits bigint[], p_subjects bigint[], p_windows timestamptz[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET lock_timeout = '100ms'
AS $$
DECLARE
    k      record;
    before timestamptz;
    excess bigint;
    owed   bigint;
BEGIN
    FOR k IN
        SELECT DISTINCT x.limit_id, x.subject, x.window_start,
               l.window_type, l.window_period, l.window_zone, l.window_seconds, l.amount, l.carry_debt
        FROM unnest(p_limits, p_subjects, p_windows) AS x (limit_id, subject, window_start)
        JOIN tollgate.limits AS l ON l.id = x.limit_id
        ORDER BY 1, 2, 3
    LOOP
        owed := 0;
        IF k.window_start <> '-infinity' AND k.carry_debt AND k.amount IS NOT NULL THEN
            BEGIN
                SELECT m.window_start, greatest(0, m.carried + m.spent - k.amount) INTO before, excess
                FROM ledger.meters AS m
                WHERE m.limit_id = k.limit_id AND m.subject = k.subject AND m.window_start < k.window_start
                ORDER BY m.window_start DESC LIMIT 1
                FOR UPDATE;
            EXCEPTION WHEN lock_not_available THEN
                CONTINUE;
            END;
            IF excess > 0 THEN
                owed := greatest(0, excess - k.amount::numeric * ledger.windows_between(k.window_type, k.window_period,
                    k.window_zone, k.window_seconds, before, k.window_start))::bigint;
            END IF;
        END IF;
        INSERT INTO ledger.meters (limit_id, subject, window_start, carried)
        VALUES (k.limit_id, k.subject, k.window_start, owed)
        ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;

-- The meters of a batch with its settlements in and before its admissions: a row for each of a_…, in their order. It is plain
-- SQL, so that it becomes part of the query that calls it, which pays for the columns it wants.
--
-- o_…:   what the rows of ledger.meters said under their locks. a_… is explained in ledger.batch.
-- k:     its number among the wanted meters; NULL: nobody wants it.
-- room:  what can still be admitted.
-- stale: it is wanted, and its window has ended.
-- ended: nobody wants it, its window has ended, and what that overspent is owed by the present one.
CREATE FUNCTION ledger.meters_at(
    at_us bigint, at timestamptz,
    a_limits bigint[], a_windows timestamptz[], a_meters int[], a_held bigint[], a_spent bigint[], a_back bigint[],
    o_levels bigint[], o_refilled bigint[], o_spent bigint[], o_held bigint[], o_carried bigint[]
) RETURNS TABLE (
    k int, known boolean, class smallint, counts boolean, log boolean, amount bigint, burst bigint, ticks bigint,
    level bigint, refilled_us bigint, reset boolean, spent bigint, held bigint, carried bigint, room bigint, stale boolean, ended boolean
)
LANGUAGE sql STABLE
AS $$
    SELECT f.k, f.known, f.class, f.counts, f.log, f.amount, f.burst, f.ticks, f.level, f.refilled_us, f.reset, f.spent, f.held, f.carried,
           CASE
               WHEN NOT f.counts OR f.amount IS NULL THEN 4611686018427387904
               WHEN f.ticks IS NOT NULL THEN f.level / f.ticks
               WHEN f.class < 10 THEN f.amount - f.carried - f.spent - f.held
               ELSE f.amount - f.held
           END, f.stale, f.ended
    FROM (
        SELECT e.*,
               e.k IS NOT NULL AND e.present <> e.window_start AS stale,
               e.k IS NULL AND e.carries AND e.present > e.window_start
                   AND e.carried + greatest(e.spent, e.old_spent) > e.amount AS ended,
               CASE
                   WHEN e.ticks IS NULL THEN 0
                   WHEN e.amount IS NULL THEN e.old_level
                   ELSE greatest(least(e.back::numeric * e.ticks + CASE
                       WHEN e.full_level <= e.old_level OR e.elapsed <= 0 THEN least(e.old_level, e.full_level)
                       WHEN e.old_refilled IS NULL THEN e.full_level
                       WHEN e.amount = 0 THEN e.old_level
                       WHEN e.elapsed > (e.full_level - e.old_level - 1) / e.amount THEN e.full_level
                       ELSE e.old_level + e.amount * e.elapsed
                   END, e.full_level), -4611686018427387904)::bigint
               END AS level
        FROM (
            SELECT d.*, coalesce((d.at_tick - d.refilled_from) / d.tick_us, 1) AS elapsed, greatest(d.at_tick, d.refilled_from) AS refilled_us
            FROM (
                SELECT c.*, c.burst * c.ticks AS full_level,
                       -- far ahead of the clock: the trace of a clock that was set back (ruling 15)
                       CASE WHEN c.old_refilled > c.at_tick + 300000000 THEN c.at_tick ELSE c.old_refilled END AS refilled_from,
                       coalesce(c.old_refilled > c.at_tick + 300000000, false) AS reset
                FROM (
                    SELECT b.*, b.per_us / coalesce(b.ticks, b.per_us) AS tick_us, at_us - at_us % (b.per_us / coalesce(b.ticks, b.per_us)) AS at_tick
                    FROM (
                        SELECT CASE WHEN a_meters IS NULL THEN x.a::int ELSE a_meters[x.a] END AS k, a_windows[x.a] AS window_start,
                               coalesce(a_back[x.a], 0) AS back, o_levels[x.a] AS old_level, o_refilled[x.a] AS old_refilled,
                               o_spent[x.a] AS old_spent, o_spent[x.a] + coalesce(a_spent[x.a], 0) AS spent,
                               o_held[x.a] - coalesce(a_held[x.a], 0) AS held, o_carried[x.a] AS carried,
                               ledger.leg_class(l.kind, l.metric) AS class, l.amount, l.burst, l.mode = 'log' AS log,
                               l.carry_debt AS carries, l.id IS NOT NULL AND l.deleted_at IS NULL AS known,
                               (l.starts_at IS NULL OR l.starts_at <= at) AND (l.expires_at IS NULL OR l.expires_at > at)
                                   AND (l.kind <> 'rate' OR l.amount IS NOT NULL) AS counts,
                               CASE WHEN l.kind = 'rate' THEN ledger.ticks(l.metric, l.per_seconds) END AS ticks,
                               CASE WHEN l.kind = 'rate' THEN l.per_seconds * 1000000::bigint ELSE 1 END AS per_us,
                               CASE WHEN l.kind = 'budget' AND l.window_type <> 'total' THEN
                                   ledger.window_start(l.window_type, l.window_period, l.window_zone, l.window_seconds,
                                       coalesce(l.window_anchor, l.created_at), at)
                                   ELSE '-infinity' END AS present
                        FROM unnest(a_limits) WITH ORDINALITY AS x (limit_id, a)
                        LEFT JOIN tollgate.limits AS l ON l.id = x.limit_id
                        OFFSET 0 -- computed once, not once for each mention; and so below
                    ) AS b
                    OFFSET 0
                ) AS c
                OFFSET 0
            ) AS d
            OFFSET 0
        ) AS e
        OFFSET 0
    ) AS f
    OFFSET 0
$$;

-- Decides a batch: settlements first, then admissions in the order given, each as if it had come alone.
--
-- s_…: settlements, in the order of their ids. s_actual has ten numbers for each: what a leg of each class settles to;
--      −1: to what was held. s_hold: the row books what was reserved. With p_expiry their rows are of kind expiry.
-- r_…: admissions. r_closes is the number of the settlement that closes the attempt before it; 0: none.
-- k_…: the meters that the admissions want, distinct, ordered by limit and subject, with the sum of what is wanted.
-- w_…: the wants of all admissions in turn: number of the meter, amount. A carried one takes without asking for room, since
--      its settlement has just given it back. Those of admission j are r_firsts[j] up to r_firsts[j + 1] − 1.
-- Quantities and prices are flat, with the same number of units for each.
--
-- Result. verdict:
--   ok:       decided. s_status, r_status and w_taken are NULL where everything went well. The arrays m_… tell each meter
--             of k_… as it was after the settlements and before the admissions.
--   missing:  nothing was done; the meters m_limits, m_subjects, m_windows must be made first.
--   conflict: nothing was done; not all is as it usually is. Repeat with p_careful.
--   stale:    nothing was done; a window ended, or a meter went, meanwhile. Repeat.
-- An exception with SQLSTATE TG001 means conflict, too.
-- s_status: 1 closed, 2 adjusted after its expiry, 3 closed before, 4 never admitted, 6 a meter is locked.
-- r_status: 0 refused, 1 admitted, 2 limits unknown, 3 open already, 4 closed already, 5 id not of this time, 6 a meter is
--           locked.
-- w_taken:  0 nothing (refused, or not counted), 1 taken, 2 log mode: would have been refused, not taken, 3 the same, taken.
--
-- waited_us: how long it took to get the locks, in microseconds.
--
-- p_skip_locked decides what it can without waiting for a lock; with p_careful a missing meter counts as a locked one. Meters are locked in the order of their keys before any
-- other row is, by everyone.
CREATE FUNCTION ledger.batch(
    p_process bigint, p_careful boolean, p_skip_locked boolean, p_expiry boolean,
    s_ids uuid[], s_release boolean[], s_hold boolean[], s_outcomes text[], s_sources text[], s_quantities bigint[],
    s_prices bigint[], s_costs bigint[], s_actual bigint[],
    r_ids uuid[], r_requests uuid[], r_attempts int[],
    r_organizations bigint[], r_organization_ids text[], r_organization_names text[],
    r_teams bigint[], r_team_ids text[], r_team_names text[],
    r_keys bigint[], r_key_ids text[], r_key_names text[],
    r_users bigint[], r_user_ids text[], r_user_names text[],
    r_end_users bigint[], r_routes text[], r_models bigint[], r_model_names text[], r_providers text[],
    r_targets bigint[], r_upstream_models text[], r_price_ids bigint[], r_unpriced boolean[],
    r_quantities bigint[], r_prices bigint[], r_costs bigint[], r_expiries_ms bigint[], r_closes int[], r_firsts int[],
    k_limits bigint[], k_subjects bigint[], k_sums bigint[],
    w_meters int[], w_amounts bigint[], w_carried boolean[],
    OUT verdict text, OUT decided_at timestamptz, OUT config_version bigint, OUT wrote boolean,
    OUT s_status smallint[], OUT r_status smallint[], OUT w_taken smallint[],
    OUT m_limits bigint[], OUT m_subjects bigint[], OUT m_windows timestamptz[],
    OUT m_counts boolean[], OUT m_log boolean[], OUT m_amounts bigint[], OUT m_bursts bigint[],
    OUT m_levels bigint[], OUT m_spent bigint[], OUT m_held bigint[], OUT m_carried bigint[],
    OUT resets int, OUT waited_us bigint
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET lock_timeout = '100ms'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
DECLARE
    far  CONSTANT bigint := 4611686018427387904; -- bounds levels, and stands for room without end
    ns   CONSTANT int := cardinality(s_ids);
    nr   CONSTANT int := cardinality(r_ids);
    nk   CONSTANT int := cardinality(k_limits);
    nw   CONSTANT int := cardinality(w_meters);
    units int;
    before CONSTANT timestamptz := clock_timestamp();
    now_us bigint;
    epoch_ int;
    count_ int;
    -- admissions' meters
    k_windows timestamptz[];
    k_known   boolean[];
    k_classes smallint[];
    k_room    bigint[];
    k_taken   bigint[];
    m_numbers int[]; -- of k_…, to which the arrays m_… belong
    -- legs of the settlements
    l_settlements int[];
    l_limits   bigint[];
    l_subjects bigint[];
    l_windows  timestamptz[];
    l_classes  smallint[];
    l_held     bigint[]; -- what it holds still: 0 after an expiry
    l_booked   bigint[]; -- what it was charged last: reserved, or the actual of its provisional row
    -- meters of present windows that take over from ended ones
    t_limits   bigint[];
    t_subjects bigint[];
    t_windows  timestamptz[];
    -- all meters, in the order of their keys
    a_limits   bigint[];
    a_subjects bigint[];
    a_windows  timestamptz[];
    a_meters   int[];    -- the number among k_…, or NULL. No array: they are those of k_…
    a_held     bigint[]; -- what the settlements take off held
    a_spent    bigint[]; -- what they add to spent
    a_back     bigint[]; -- what they give back to a bucket
    o_levels   bigint[];
    o_refilled bigint[];
    o_spent    bigint[];
    o_held     bigint[];
    o_carried  bigint[];
    n_levels   bigint[];
    n_refilled timestamptz[];
    n_ticks    bigint[];
    n_carried  bigint[];
    ended      boolean;
    growth     bigint;
    earliest   uuid;
    latest     uuid;
    stale      boolean;
    clean      boolean := true; -- every admission of the batch can still be admitted
    fits       boolean;
    usual      CONSTANT boolean := NOT p_careful AND NOT p_skip_locked;
    admitted   int := 0;
    to_settle  int := 0;
    to_release int := 0;
    to_adjust  int := 0;
    to_bury    int := 0; -- released before they were reserved
    i int; j int; k int; first int; last int; good boolean;
BEGIN
    wrote := false;
    units := CASE WHEN nr > 0 THEN cardinality(r_quantities) / nr WHEN ns > 0 THEN cardinality(s_quantities) / ns END;
    -- An id carries the time it was made at; partitions and the sweeper's low water rely on it.
    now_us := (extract(epoch FROM before) * 1000000)::bigint;
    earliest := (lpad(to_hex(now_us / 1000 - 3600000), 12, '0') || repeat('0', 20))::uuid;
    latest := (lpad(to_hex(now_us / 1000 + 60000), 12, '0') || repeat('0', 20))::uuid;

    SELECT c.version, e.epoch INTO config_version, epoch_ FROM tollgate.config_state AS c, ledger.state AS e;

    -- The wanted meters. Kind, metric and windows of a limit never change, so they may be read before the locks.
    IF nk > 0 THEN
        SELECT array_agg(q.known), array_agg(q.window_start),
               array_agg(q.limit_id) FILTER (WHERE q.missing), array_agg(q.subject) FILTER (WHERE q.missing),
               array_agg(q.window_start) FILTER (WHERE q.missing)
        INTO k_known, k_windows, m_limits, m_subjects, m_windows
        FROM (
            SELECT w.*, w.known AND m.limit_id IS NULL AS missing
            FROM (
                SELECT k.k, k.limit_id, k.subject, l.id IS NOT NULL AS known,
                       CASE WHEN l.kind = 'budget' AND l.window_type <> 'total' THEN
                           ledger.window_start(l.window_type, l.window_period, l.window_zone, l.window_seconds,
                               coalesce(l.window_anchor, l.created_at), before)
                           ELSE '-infinity' END AS window_start
                FROM unnest(k_limits, k_subjects) WITH ORDINALITY AS k (limit_id, subject, k)
                LEFT JOIN tollgate.limits AS l ON l.id = k.limit_id
                OFFSET 0 -- computed once, not once for each mention
            ) AS w
            LEFT JOIN ledger.meters AS m
                ON m.limit_id = w.limit_id AND m.subject = w.subject AND m.window_start = w.window_start
            OFFSET 0
        ) AS q;
        IF m_limits IS NOT NULL AND NOT (p_careful AND p_skip_locked) THEN
            verdict := 'missing';
            RETURN;
        END IF;
    END IF;

    -- An attempt that has a row is not reserved again. A repeat after a lost reply comes with p_careful, and looks once the
    -- locks are held.
    IF nr > 0 AND NOT p_careful THEN
        SELECT count(*) INTO count_
        FROM unnest(r_ids) AS r (id)
        CROSS JOIN LATERAL (
            SELECT FROM ledger.rows AS w
            WHERE w.attempt_id = r.id AND w.attempt_id >= earliest AND w.attempt_id < latest -- opens the partitions of this time only
            LIMIT 1
        ) AS w;
        IF count_ > 0 THEN
            verdict := 'conflict';
            RETURN;
        END IF;
    END IF;

    IF ns > 0 THEN
        s_status := array_fill(1::smallint, ARRAY[ns]);
    END IF;
    IF ns > 0 AND p_careful THEN
        -- What is no longer open has a row, or was released, or never was. A provisional row is adjusted once.
        SELECT array_agg(CASE
                   WHEN r.state = 'open' THEN 1
                   WHEN r.state = 'released' THEN 3
                   WHEN w.attempt_id IS NULL THEN 4
                   WHEN late.attempt_id IS NOT NULL OR p_expiry THEN 3
                   WHEN w.kind = 'expiry' OR w.usage_source = 'reservation' AND s_sources[s.i] <> 'reservation' THEN 2
                   ELSE 3
               END ORDER BY s.i)
        INTO s_status
        FROM unnest(s_ids) WITH ORDINALITY AS s (id, i)
        LEFT JOIN ledger.reservations AS r ON r.attempt_id = s.id
        LEFT JOIN ledger.rows AS w ON w.attempt_id = s.id AND w.kind IN ('usage', 'expiry')
        LEFT JOIN ledger.rows AS late ON late.attempt_id = s.id AND late.kind = 'late_adjustment';
    END IF;
    IF ns > 0 AND NOT usual THEN
        -- The legs of what is to be settled, from its reservation or its row.
        SELECT array_agg(q.i), array_agg(q.limit_id), array_agg(q.subject), array_agg(q.window_start), array_agg(q.class),
               array_agg(q.held), array_agg(q.booked)
        INTO l_settlements, l_limits, l_subjects, l_windows, l_classes, l_held, l_booked
        FROM (
            SELECT s.i, g.limit_id, g.subject, g.window_start, g.class, g.reserved AS held, g.reserved AS booked
            FROM unnest(s_ids) WITH ORDINALITY AS s (id, i)
            JOIN ledger.reservations AS r ON r.attempt_id = s.id AND r.state = 'open'
            CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes, r.leg_reserved)
                AS g (limit_id, subject, window_start, class, reserved)
            WHERE s_status[s.i] = 1
            UNION ALL
            SELECT s.i, g.limit_id, g.subject, g.window_start, g.class, 0, g.actual
            FROM unnest(s_ids) WITH ORDINALITY AS s (id, i)
            JOIN ledger.rows AS r ON r.attempt_id = s.id AND r.kind IN ('usage', 'expiry')
            CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes, r.leg_actual)
                AS g (limit_id, subject, window_start, class, actual)
            WHERE s_status[s.i] = 2
        ) AS q;
    END IF;

    IF p_skip_locked THEN
        -- Lock what can be locked; whoever needs another meter waits on. The locks are kept, so that the ordinary course
        -- below finds them free.
        SELECT array_agg(q.limit_id), array_agg(q.subject), array_agg(q.window_start)
        INTO a_limits, a_subjects, a_windows
        FROM (
            SELECT m.limit_id, m.subject, m.window_start
            FROM (
                SELECT k_limits[x.k] AS limit_id, k_subjects[x.k] AS subject, k_windows[x.k] AS window_start
                FROM generate_series(1, nk) AS x (k)
                UNION
                SELECT l_limits[x.l], l_subjects[x.l], l_windows[x.l] FROM generate_series(1, cardinality(l_limits)) AS x (l)
            ) AS q
            JOIN ledger.meters AS m USING (limit_id, subject, window_start)
            ORDER BY 1, 2, 3
            FOR UPDATE OF m SKIP LOCKED
        ) AS q;
        SELECT array_agg(CASE
                   WHEN s_status[s.i] IN (1, 2) AND EXISTS (
                       SELECT FROM generate_series(1, cardinality(l_limits)) AS x (l)
                       WHERE l_settlements[x.l] = s.i AND NOT EXISTS (
                           SELECT FROM unnest(a_limits, a_subjects, a_windows) AS a (limit_id, subject, window_start)
                           WHERE a.limit_id = l_limits[x.l] AND a.subject = l_subjects[x.l] AND a.window_start = l_windows[x.l]))
                   THEN 6 ELSE s_status[s.i]
               END ORDER BY s.i)
        INTO s_status
        FROM generate_series(1, ns) AS s (i);
        SELECT array_agg(CASE
                   WHEN EXISTS (
                       SELECT FROM generate_series(r_firsts[r.j], r_firsts[r.j + 1] - 1) AS x (w)
                       WHERE k_known[w_meters[x.w]] AND NOT EXISTS (
                           SELECT FROM unnest(a_limits, a_subjects, a_windows) AS a (limit_id, subject, window_start)
                           WHERE a.limit_id = k_limits[w_meters[x.w]] AND a.subject = k_subjects[w_meters[x.w]]
                             AND a.window_start = k_windows[w_meters[x.w]]))
                     OR r_closes[r.j] > 0 AND s_status[r_closes[r.j]] = 6
                   THEN 6
               END ORDER BY r.j)
        INTO r_status
        FROM generate_series(1, nr) AS r (j);
        -- An attempt that is closed by an admission which must wait waits with it.
        FOR j IN 1..nr LOOP
            IF r_status[j] = 6 AND r_closes[j] > 0 THEN
                s_status[r_closes[j]] := 6;
            END IF;
        END LOOP;
        FOR k IN 1..nk LOOP
            k_known[k] := k_known[k] AND EXISTS (
                SELECT FROM unnest(a_limits, a_subjects, a_windows) AS a (limit_id, subject, window_start)
                WHERE a.limit_id = k_limits[k] AND a.subject = k_subjects[k] AND a.window_start = k_windows[k]);
        END LOOP;
    END IF;

    -- All meters of the batch with what the settlements do to them.
    IF ns = 0 AND true = ALL (k_known) THEN
        a_limits := k_limits;
        a_subjects := k_subjects;
        a_windows := k_windows;
    ELSIF usual THEN
        -- Legs never change. Whether the attempt is still open is asked again by the write that closes it.
        SELECT array_agg(q.limit_id), array_agg(q.subject), array_agg(q.window_start), array_agg(q.k), array_agg(q.held),
               array_agg(q.spent), array_agg(q.back)
        INTO a_limits, a_subjects, a_windows, a_meters, a_held, a_spent, a_back
        FROM (
            SELECT u.limit_id, u.subject, u.window_start, max(u.k) AS k, sum(u.held)::bigint AS held,
                   sum(u.spent)::bigint AS spent, sum(u.back)::bigint AS back
            FROM (
                SELECT k_limits[x.k] AS limit_id, k_subjects[x.k] AS subject, k_windows[x.k] AS window_start, x.k,
                       0::bigint AS held, 0::bigint AS spent, 0::bigint AS back
                FROM generate_series(1, nk) AS x (k)
                WHERE k_known[x.k] IS NOT false
                UNION ALL
                SELECT g.limit_id, g.subject, g.window_start, NULL,
                       CASE WHEN g.class >= 6 THEN g.reserved ELSE 0 END,
                       CASE WHEN g.class BETWEEN 6 AND 9 THEN CASE WHEN t.actual < 0 THEN g.reserved ELSE t.actual END ELSE 0 END,
                       CASE WHEN g.class < 6 THEN g.reserved - t.actual ELSE 0 END
                FROM unnest(s_ids) WITH ORDINALITY AS s (id, i)
                CROSS JOIN LATERAL ( -- looked up one by one, however few the planner believes there are
                    SELECT * FROM ledger.reservations AS r WHERE r.attempt_id = s.id AND r.state = 'open' OFFSET 0
                ) AS r
                CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes, r.leg_reserved)
                    AS g (limit_id, subject, window_start, class, reserved)
                CROSS JOIN LATERAL (SELECT s_actual[(s.i - 1) * 10 + g.class] AS actual) AS t
                WHERE g.class >= 6 OR t.actual >= 0 AND t.actual <> g.reserved
            ) AS u
            GROUP BY 1, 2, 3
            ORDER BY 1, 2, 3
        ) AS q;
    ELSE
        -- Where a leg's window has ended, the present one is among them, because it takes over what is overspent.
        IF '-infinity' < ANY (l_windows) THEN
            SELECT array_agg(d.limit_id), array_agg(d.subject), array_agg(m.window_start)
            INTO t_limits, t_subjects, t_windows
            FROM (
                SELECT DISTINCT l_limits[x.l] AS limit_id, l_subjects[x.l] AS subject, l_windows[x.l] AS window_start
                FROM generate_series(1, cardinality(l_limits)) AS x (l)
                WHERE l_windows[x.l] > '-infinity'
            ) AS d
            JOIN tollgate.limits AS l ON l.id = d.limit_id
            CROSS JOIN LATERAL (
                SELECT n.window_start FROM ledger.meters AS n
                WHERE n.limit_id = d.limit_id AND n.subject = d.subject AND n.window_start > d.window_start
                ORDER BY n.window_start DESC LIMIT 1
            ) AS m
            WHERE l.carry_debt;
        END IF;
        SELECT array_agg(q.limit_id), array_agg(q.subject), array_agg(q.window_start), array_agg(q.k), array_agg(q.held),
               array_agg(q.spent), array_agg(q.back)
        INTO a_limits, a_subjects, a_windows, a_meters, a_held, a_spent, a_back
        FROM (
            SELECT u.limit_id, u.subject, u.window_start, max(u.k) AS k, sum(u.held)::bigint AS held,
                   sum(u.spent)::bigint AS spent, sum(u.back)::bigint AS back
            FROM (
                SELECT k_limits[x.k] AS limit_id, k_subjects[x.k] AS subject, k_windows[x.k] AS window_start, x.k,
                       0::bigint AS held, 0::bigint AS spent, 0::bigint AS back
                FROM generate_series(1, nk) AS x (k)
                WHERE k_known[x.k] IS NOT false
                UNION ALL
                SELECT t.limit_id, t.subject, t.window_start, NULL, 0, 0, 0
                FROM unnest(t_limits, t_subjects, t_windows) AS t (limit_id, subject, window_start)
                UNION ALL
                SELECT x.limit_id, x.subject, x.window_start, NULL,
                       CASE WHEN x.class >= 6 THEN x.held ELSE 0 END,
                       CASE WHEN x.class BETWEEN 6 AND 9 THEN
                           CASE WHEN t.actual < 0 THEN x.booked ELSE t.actual END - (x.booked - x.held) ELSE 0 END,
                       CASE WHEN x.class < 6 AND t.actual >= 0 THEN x.booked - t.actual ELSE 0 END
                FROM unnest(l_settlements, l_limits, l_subjects, l_windows, l_classes, l_held, l_booked)
                    AS x (s, limit_id, subject, window_start, class, held, booked)
                CROSS JOIN LATERAL (SELECT s_actual[(x.s - 1) * 10 + x.class] AS actual) AS t
                WHERE s_status[x.s] IN (1, 2)
                  AND (x.class >= 6 OR t.actual >= 0 AND t.actual <> x.booked)
            ) AS u
            GROUP BY 1, 2, 3
            ORDER BY 1, 2, 3
        ) AS q;
    END IF;

    waited_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    IF a_limits IS NOT NULL THEN
        -- Lock.
        SELECT array_agg(q.level), array_agg(q.refilled_us), array_agg(q.spent), array_agg(q.held), array_agg(q.carried)
        INTO o_levels, o_refilled, o_spent, o_held, o_carried
        FROM (
            SELECT m.level, m.spent, m.held, m.carried,
                   CASE WHEN m.refilled_at > '-infinity' THEN (extract(epoch FROM m.refilled_at) * 1000000)::bigint END AS refilled_us
            FROM unnest(a_limits, a_subjects, a_windows) AS x (limit_id, subject, window_start)
            CROSS JOIN LATERAL ( -- in the order of the arrays
                SELECT * FROM ledger.meters AS m
                WHERE m.limit_id = x.limit_id AND m.subject = x.subject AND m.window_start = x.window_start
                FOR UPDATE
            ) AS m
        ) AS q;
        IF cardinality(o_levels) IS DISTINCT FROM cardinality(a_limits) THEN
            verdict := 'stale';
            RETURN;
        END IF;
    END IF;

    -- The clock is read after the locks, so that who waited is refilled for the time of waiting; and so are the limits.
    decided_at := clock_timestamp();
    now_us := (extract(epoch FROM decided_at) * 1000000)::bigint;
    resets := 0;
    waited_us := now_us - waited_us;
    IF a_limits IS NOT NULL THEN
        IF nr = 0 THEN
            SELECT array_agg(q.level), array_agg(to_timestamp(0) + q.refilled_us * interval '1 microsecond'), array_agg(q.ticks),
                   count(*) FILTER (WHERE q.reset), bool_or(q.ended)
            INTO n_levels, n_refilled, n_ticks, resets, ended
            FROM ledger.meters_at(now_us, decided_at, a_limits, a_windows, a_meters, a_held, a_spent, a_back,
                o_levels, o_refilled, o_spent, o_held, o_carried) AS q;
        ELSE
            SELECT array_agg(q.level), array_agg(to_timestamp(0) + q.refilled_us * interval '1 microsecond'), array_agg(q.ticks),
                   count(*) FILTER (WHERE q.reset), bool_or(q.ended), bool_or(q.stale),
                   -- what the admissions see
                   array_agg(q.k) FILTER (WHERE q.k > 0), array_agg(q.known) FILTER (WHERE q.k > 0),
                   array_agg(q.class) FILTER (WHERE q.k > 0), array_agg(q.counts) FILTER (WHERE q.k > 0),
                   array_agg(q.log) FILTER (WHERE q.k > 0), array_agg(q.amount) FILTER (WHERE q.k > 0),
                   array_agg(q.burst) FILTER (WHERE q.k > 0), array_agg(q.level) FILTER (WHERE q.k > 0),
                   array_agg(q.spent) FILTER (WHERE q.k > 0), array_agg(q.held) FILTER (WHERE q.k > 0),
                   array_agg(q.carried) FILTER (WHERE q.k > 0), array_agg(q.room) FILTER (WHERE q.k > 0),
                   -- and what they take if all of them fit
                   coalesce(bool_and(q.known AND k_sums[q.k] <= q.room) FILTER (WHERE q.k > 0), true),
                   array_agg(CASE WHEN q.counts THEN k_sums[q.k] ELSE 0 END) FILTER (WHERE q.k > 0)
            INTO n_levels, n_refilled, n_ticks, resets, ended, stale,
                 m_numbers, k_known, k_classes, m_counts, m_log, m_amounts, m_bursts, m_levels, m_spent, m_held, m_carried, k_room,
                 fits, k_taken
            FROM ledger.meters_at(now_us, decided_at, a_limits, a_windows, a_meters, a_held, a_spent, a_back,
                o_levels, o_refilled, o_spent, o_held, o_carried) AS q;
        END IF;
        n_carried := o_carried;
        IF stale THEN
            verdict := 'stale';
            RETURN;
        END IF;
        IF ended AND usual THEN
            verdict := 'conflict';
            RETURN;
        END IF;
    END IF;

    -- What a settlement overspends in a window that has ended grows what the present window owes, and what an adjustment
    -- gives back shrinks it.
    IF ended THEN
        FOR i IN 1..cardinality(a_limits) LOOP
            CONTINUE WHEN a_windows[i] = '-infinity' OR a_spent[i] = 0;
            j := NULL;
            FOR k IN i + 1..cardinality(a_limits) LOOP
                EXIT WHEN a_limits[k] <> a_limits[i] OR a_subjects[k] <> a_subjects[i];
                j := k;
            END LOOP;
            CONTINUE WHEN j IS NULL;
            SELECT greatest(0, o_carried[i] + o_spent[i] + a_spent[i] - l.amount) - greatest(0, o_carried[i] + o_spent[i] - l.amount)
            INTO growth
            FROM tollgate.limits AS l
            WHERE l.id = a_limits[i];
            growth := greatest(0, n_carried[j] + coalesce(growth, 0)) - n_carried[j];
            n_carried[j] := n_carried[j] + growth;
            -- The admissions of this very batch meet it already.
            k := array_position(m_numbers, a_meters[j]);
            IF k IS NOT NULL THEN
                m_carried[k] := m_carried[k] + growth;
                k_room[k] := CASE WHEN k_room[k] = far THEN far ELSE k_room[k] - growth END;
                fits := fits AND k_sums[a_meters[j]] <= k_room[k];
            END IF;
        END LOOP;
    END IF;

    -- Decide.
    IF nr > 0 THEN
        IF r_status IS NOT NULL AND array_position(r_status, 6::smallint) IS NOT NULL THEN
            clean := false;
        ELSE
            r_status := NULL;
        END IF;
        IF earliest > ANY (r_ids) OR latest <= ANY (r_ids) THEN
            clean := false;
            r_status := coalesce(r_status, array_fill(NULL::smallint, ARRAY[nr]));
            FOR j IN 1..nr LOOP
                IF r_ids[j] < earliest OR r_ids[j] >= latest THEN
                    r_status[j] := 5;
                END IF;
            END LOOP;
        END IF;
        IF p_careful THEN
            r_status := coalesce(r_status, array_fill(NULL::smallint, ARRAY[nr]));
            SELECT array_agg(coalesce(r_status[x.j], CASE
                       WHEN r.state = 'open' THEN 3
                       WHEN r.state = 'released' OR EXISTS (SELECT FROM ledger.rows AS w WHERE w.attempt_id = x.id) THEN 4
                       WHEN EXISTS ( -- released by this very batch before it was reserved
                           SELECT FROM generate_series(1, ns) AS s (i)
                           WHERE s_ids[s.i] = x.id AND s_release[s.i] AND s_status[s.i] = 4) THEN 4
                   END) ORDER BY x.j)
            INTO r_status
            FROM unnest(r_ids) WITH ORDINALITY AS x (id, j)
            LEFT JOIN ledger.reservations AS r ON r.attempt_id = x.id;
            clean := false;
        END IF;
        fits := clean AND (nk = 0 OR fits);
        IF nk > 0 THEN
            IF cardinality(k_room) IS DISTINCT FROM nk OR NOT true = ALL (k_known) THEN
                -- A limit that is gone has no meter among m_…: bring what is known back to the numbers of k_….
                SELECT array_agg(coalesce(f.room, 0) ORDER BY x.k), array_agg(coalesce(f.known, false) ORDER BY x.k),
                       array_agg(coalesce(f.counts, false) ORDER BY x.k), array_agg(coalesce(f.log, false) ORDER BY x.k),
                       array_agg(f.amount ORDER BY x.k), array_agg(f.burst ORDER BY x.k), array_agg(f.level ORDER BY x.k),
                       array_agg(f.spent ORDER BY x.k), array_agg(f.held ORDER BY x.k),
                       array_agg(f.carried ORDER BY x.k), array_agg(f.class ORDER BY x.k)
                INTO k_room, k_known, m_counts, m_log, m_amounts, m_bursts, m_levels, m_spent, m_held, m_carried, k_classes
                FROM generate_series(1, nk) AS x (k)
                LEFT JOIN unnest(m_numbers, k_room, k_known, m_counts, m_log, m_amounts, m_bursts, m_levels, m_spent, m_held,
                        m_carried, k_classes)
                    AS f (k, room, known, counts, log, amount, burst, level, spent, held, carried, class)
                    ON f.k = x.k;
                fits := false;
            END IF;
        END IF;
        IF fits THEN
            r_status := NULL;
        ELSE
            r_status := coalesce(r_status, array_fill(NULL::smallint, ARRAY[nr]));
            w_taken := array_fill(0::smallint, ARRAY[nw]);
            k_taken := array_fill(0::bigint, ARRAY[nk]);
            FOR j IN 1..nr LOOP
                CONTINUE WHEN r_status[j] IS NOT NULL;
                first := r_firsts[j];
                last := r_firsts[j + 1] - 1;
                good := true;
                FOR i IN first..last LOOP
                    k := w_meters[i];
                    IF NOT k_known[k] THEN
                        r_status[j] := 2;
                        good := false;
                        EXIT;
                    END IF;
                    -- After a conflict what is carried may have been given back long ago, and taken by others since.
                    IF good AND w_amounts[i] > greatest(k_room[k], 0) AND NOT m_log[k]
                       AND NOT (w_carried[i] AND (NOT p_careful OR r_closes[j] > 0 AND s_status[r_closes[j]] = 1)) THEN
                        good := false;
                    END IF;
                END LOOP;
                IF NOT good THEN
                    r_status[j] := coalesce(r_status[j], 0);
                    CONTINUE;
                END IF;
                r_status[j] := 1;
                FOR i IN first..last LOOP
                    k := w_meters[i];
                    IF NOT m_counts[k] THEN
                        CONTINUE;
                    ELSIF w_amounts[i] <= k_room[k] OR NOT m_log[k] OR w_carried[i] THEN
                        w_taken[i] := 1;
                    ELSIF k_classes[k] BETWEEN 6 AND 9 THEN
                        w_taken[i] := 3;
                    ELSE
                        w_taken[i] := 2;
                        CONTINUE;
                    END IF;
                    k_room[k] := k_room[k] - w_amounts[i];
                    k_taken[k] := k_taken[k] + w_amounts[i];
                END LOOP;
            END LOOP;
        END IF;
    END IF;

    -- Write: what was open gives way to its row; where it is open no longer, all of this is undone,
    IF ns > 0 THEN
        IF 1 = ALL (s_status) THEN
            to_release := cardinality(array_positions(s_release, true));
            to_settle := ns - to_release;
        ELSE
            SELECT count(*) FILTER (WHERE s.status = 1 AND NOT s.release), count(*) FILTER (WHERE s.status = 1 AND s.release),
                   count(*) FILTER (WHERE s.status = 2), count(*) FILTER (WHERE s.status = 4 AND s.release)
            INTO to_settle, to_release, to_adjust, to_bury
            FROM unnest(s_status, s_release) AS s (status, release);
        END IF;
        wrote := wrote OR to_settle + to_release + to_adjust + to_bury > 0;
    END IF;
    IF to_settle > 0 THEN
        WITH s AS (
            SELECT s.i, s.id
            FROM unnest(s_ids) WITH ORDINALITY AS s (id, i)
            WHERE s_status[s.i] = 1 AND NOT s_release[s.i]
        ), gone AS (
            DELETE FROM ledger.reservations AS r USING s WHERE r.attempt_id = s.id AND r.state = 'open' RETURNING r.*, s.i
        )
        INSERT INTO ledger.rows (attempt_id, kind, epoch, request_id, attempt,
            organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
            key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
            route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
            outcome, usage_source, quantities, unit_prices, cost,
            leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved, leg_actual, process_id, admitted_at, settled_at)
        SELECT g.attempt_id, CASE WHEN p_expiry THEN 'expiry' ELSE 'usage' END, epoch_, g.request_id, g.attempt,
            g.organization_id, g.organization_public_id, g.organization_name, g.team_id, g.team_public_id, g.team_name,
            g.key_id, g.key_public_id, g.key_name, g.user_id, g.user_public_id, g.user_name, g.end_user_id,
            g.route, g.model_id, g.model, g.provider, g.target_id, g.upstream_model, g.price_id, g.unpriced,
            s_outcomes[g.i], s_sources[g.i],
            CASE WHEN s_hold[g.i] THEN g.quantities ELSE s_quantities[(g.i - 1) * units + 1:g.i * units] END,
            CASE WHEN s_hold[g.i] THEN g.unit_prices ELSE s_prices[(g.i - 1) * units + 1:g.i * units] END,
            CASE WHEN s_hold[g.i] THEN g.cost ELSE s_costs[g.i] END,
            g.leg_limits, g.leg_subjects, g.leg_windows, g.leg_classes, g.leg_reserved,
            ARRAY(
                SELECT CASE WHEN s_actual[(g.i - 1) * 10 + x.class] < 0 THEN x.reserved ELSE s_actual[(g.i - 1) * 10 + x.class] END
                FROM unnest(g.leg_reserved, g.leg_classes) AS x (reserved, class)
            ),
            g.process_id, g.admitted_at, decided_at
        FROM gone AS g;
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ <> to_settle THEN
            RAISE EXCEPTION 'an attempt was closed meanwhile' USING ERRCODE = 'TG001';
        END IF;
    END IF;
    IF to_release > 0 THEN
        UPDATE ledger.reservations AS r
        SET state = 'released', closed_at = decided_at
        FROM unnest(s_ids, s_release, s_status) AS s (id, release, status)
        WHERE r.attempt_id = s.id AND r.state = 'open' AND s.release AND s.status = 1;
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ <> to_release THEN
            RAISE EXCEPTION 'an attempt was closed meanwhile' USING ERRCODE = 'TG001';
        END IF;
    END IF;
    IF to_adjust > 0 THEN
        INSERT INTO ledger.rows (attempt_id, kind, epoch, request_id, attempt,
            organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
            key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
            route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
            outcome, usage_source, quantities, unit_prices, cost,
            leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved, leg_actual, process_id, admitted_at, settled_at,
            corrects_attempt, corrects_kind)
        SELECT w.attempt_id, 'late_adjustment', epoch_, w.request_id, w.attempt,
            w.organization_id, w.organization_public_id, w.organization_name, w.team_id, w.team_public_id, w.team_name,
            w.key_id, w.key_public_id, w.key_name, w.user_id, w.user_public_id, w.user_name, w.end_user_id,
            w.route, w.model_id, w.model, w.provider, w.target_id, w.upstream_model, w.price_id, w.unpriced,
            s.outcome, s.source,
            ARRAY(
                SELECT CASE WHEN s.hold THEN 0 WHEN s.release THEN 0 ELSE coalesce(s_quantities[(s.i - 1) * units + x.u], 0) END
                    - CASE WHEN s.hold THEN 0 ELSE x.booked END
                FROM unnest(w.quantities) WITH ORDINALITY AS x (booked, u)
            ),
            CASE WHEN s.hold OR s.release THEN w.unit_prices ELSE s_prices[(s.i - 1) * units + 1:s.i * units] END,
            CASE WHEN s.hold THEN 0 WHEN s.release THEN 0 ELSE s.cost END - CASE WHEN s.hold THEN 0 ELSE w.cost END,
            w.leg_limits, w.leg_subjects, w.leg_windows, w.leg_classes, array_fill(0::bigint, ARRAY[cardinality(w.leg_limits)]),
            ARRAY(
                SELECT CASE WHEN s_actual[(s.i - 1) * 10 + x.class] < 0 THEN 0 ELSE s_actual[(s.i - 1) * 10 + x.class] - x.booked END
                FROM unnest(w.leg_actual, w.leg_classes) AS x (booked, class)
            ),
            w.process_id, w.admitted_at, decided_at, w.attempt_id, w.kind
        FROM unnest(s_ids, s_release, s_hold, s_outcomes, s_sources, s_costs, s_status) WITH ORDINALITY
            AS s (id, release, hold, outcome, source, cost, status, i)
        JOIN ledger.rows AS w ON w.attempt_id = s.id AND w.kind IN ('usage', 'expiry')
        WHERE s.status = 2
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ <> to_adjust THEN
            RAISE EXCEPTION 'an attempt was adjusted meanwhile' USING ERRCODE = 'TG001';
        END IF;
    END IF;
    IF to_bury > 0 THEN
        INSERT INTO ledger.reservations (attempt_id, state, process_id, closed_at, request_id, attempt,
            organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
            key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
            route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
            quantities, unit_prices, cost, leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved)
        SELECT s.id, 'released', 0, decided_at, s.id, 0, 0, '', '', 0, '', '', 0, '', '', 0, '', '', 0, '', 0, '', '', 0, '', 0, false,
            '{}', '{}', 0, '{}', '{}', '{}', '{}', '{}'
        FROM unnest(s_ids, s_release, s_status) AS s (id, release, status)
        WHERE s.status = 4 AND s.release
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ <> to_bury THEN
            RAISE EXCEPTION 'an attempt was reserved meanwhile' USING ERRCODE = 'TG001';
        END IF;
    END IF;

    -- meters change once each,
    IF a_limits IS NOT NULL THEN
        UPDATE ledger.meters AS m
        SET level = CASE WHEN x.ticks IS NULL THEN m.level ELSE greatest(x.level - x.taken::numeric * x.ticks, -far)::bigint END,
            refilled_at = CASE WHEN x.ticks IS NULL THEN m.refilled_at ELSE x.refilled END,
            spent = m.spent + x.spent,
            held = m.held - x.held + CASE WHEN x.ticks IS NULL THEN x.taken ELSE 0 END,
            carried = x.carried
        FROM (
            SELECT x.a, x.limit_id, x.subject, x.window_start, coalesce(a_held[x.a], 0) AS held, coalesce(a_spent[x.a], 0) AS spent, coalesce(a_back[x.a], 0) AS back,
                   coalesce(k_taken[CASE WHEN a_meters IS NULL THEN x.a ELSE a_meters[x.a] END], 0) AS taken,
                   n_levels[x.a] AS level, n_refilled[x.a] AS refilled, n_ticks[x.a] AS ticks, n_carried[x.a] AS carried
            FROM unnest(a_limits, a_subjects, a_windows) WITH ORDINALITY AS x (limit_id, subject, window_start, a)
            OFFSET 0
        ) AS x
        WHERE m.limit_id = x.limit_id AND m.subject = x.subject AND m.window_start = x.window_start
          AND (x.held <> 0 OR x.spent <> 0 OR x.back <> 0 OR x.taken <> 0 OR x.carried <> o_carried[x.a]);
        wrote := wrote OR FOUND;
    END IF;

    -- and who was admitted gets a reservation.
    IF r_status IS NULL THEN
        admitted := nr;
    ELSE
        admitted := cardinality(array_positions(r_status, 1::smallint));
    END IF;
    IF admitted > 0 THEN
        INSERT INTO ledger.reservations (attempt_id, state, process_id, admitted_at, expires_at, request_id, attempt,
            organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
            key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
            route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
            quantities, unit_prices, cost, leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved)
        SELECT r_ids[r.j], 'open', p_process, decided_at, decided_at + r_expiries_ms[r.j] * interval '1 millisecond',
            r_requests[r.j], r_attempts[r.j],
            r_organizations[r.j], r_organization_ids[r.j], r_organization_names[r.j],
            r_teams[r.j], r_team_ids[r.j], r_team_names[r.j],
            r_keys[r.j], r_key_ids[r.j], r_key_names[r.j],
            r_users[r.j], r_user_ids[r.j], r_user_names[r.j], r_end_users[r.j],
            r_routes[r.j], r_models[r.j], r_model_names[r.j], r_providers[r.j], r_targets[r.j], r_upstream_models[r.j],
            r_price_ids[r.j], r_unpriced[r.j],
            r_quantities[(r.j - 1) * units + 1:r.j * units], r_prices[(r.j - 1) * units + 1:r.j * units], r_costs[r.j],
            coalesce(g.limits, '{}'), coalesce(g.subjects, '{}'), coalesce(g.windows, '{}'), coalesce(g.classes, '{}'),
            coalesce(g.amounts, '{}')
        FROM generate_series(1, nr) AS r (j)
        CROSS JOIN LATERAL (
            SELECT array_agg(k_limits[w_meters[x.w]]) AS limits, array_agg(k_subjects[w_meters[x.w]]) AS subjects,
                   array_agg(k_windows[w_meters[x.w]]) AS windows, array_agg(k_classes[w_meters[x.w]]) AS classes,
                   array_agg(w_amounts[x.w]) AS amounts
            FROM generate_series(r_firsts[r.j], r_firsts[r.j + 1] - 1) AS x (w)
            WHERE CASE WHEN w_taken IS NULL THEN m_counts[w_meters[x.w]] ELSE w_taken[x.w] IN (1, 3) END
        ) AS g
        WHERE r_status IS NULL OR r_status[r.j] = 1
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS count_ = ROW_COUNT;
        IF count_ <> admitted THEN
            RAISE EXCEPTION 'an attempt was reserved or released before' USING ERRCODE = 'TG001';
        END IF;
        wrote := true;
    END IF;
    IF s_status IS NOT NULL AND 1 = ALL (s_status) THEN
        s_status := NULL;
    END IF;
    verdict := 'ok';
END
$$;

-- Decides a batch and commits it without holding locks while the commit is flushed: the transaction that takes the locks
-- commits asynchronously, and a second, empty one is flushed before the answer goes out. WAL is flushed in order, so the
-- answer is as durable as ever. It must be called alone, outside of any transaction.
CREATE PROCEDURE ledger.batch_commit(
    p_process bigint, p_careful boolean, p_skip_locked boolean, p_expiry boolean,
    s_ids uuid[], s_release boolean[], s_hold boolean[], s_outcomes text[], s_sources text[], s_quantities bigint[],
    s_prices bigint[], s_costs bigint[], s_actual bigint[],
    r_ids uuid[], r_requests uuid[], r_attempts int[],
    r_organizations bigint[], r_organization_ids text[], r_organization_names text[],
    r_teams bigint[], r_team_ids text[], r_team_names text[],
    r_keys bigint[], r_key_ids text[], r_key_names text[],
    r_users bigint[], r_user_ids text[], r_user_names text[],
    r_end_users bigint[], r_routes text[], r_models bigint[], r_model_names text[], r_providers text[],
    r_targets bigint[], r_upstream_models text[], r_price_ids bigint[], r_unpriced boolean[],
    r_quantities bigint[], r_prices bigint[], r_costs bigint[], r_expiries_ms bigint[], r_closes int[], r_firsts int[],
    k_limits bigint[], k_subjects bigint[], k_sums bigint[],
    w_meters int[], w_amounts bigint[], w_carried boolean[],
    OUT verdict text, OUT decided_at timestamptz, OUT config_version bigint, OUT wrote boolean,
    OUT s_status smallint[], OUT r_status smallint[], OUT w_taken smallint[],
    OUT m_limits bigint[], OUT m_subjects bigint[], OUT m_windows timestamptz[],
    OUT m_counts boolean[], OUT m_log boolean[], OUT m_amounts bigint[], OUT m_bursts bigint[],
    OUT m_levels bigint[], OUT m_spent bigint[], OUT m_held bigint[], OUT m_carried bigint[],
    OUT resets int, OUT waited_us bigint
)
LANGUAGE plpgsql
AS $$
DECLARE
    b record;
BEGIN
    PERFORM pg_catalog.set_config('synchronous_commit', 'off', true);
    b := ledger.batch(
        p_process, p_careful, p_skip_locked, p_expiry, s_ids, s_release, s_hold, s_outcomes, s_sources, s_quantities,
        s_prices, s_costs, s_actual, r_ids, r_requests, r_attempts, r_organizations, r_organization_ids,
        r_organization_names, r_teams, r_team_ids, r_team_names, r_keys, r_key_ids, r_key_names, r_users, r_user_ids,
        r_user_names, r_end_users, r_routes, r_models, r_model_names, r_providers, r_targets, r_upstream_models,
        r_price_ids, r_unpriced, r_quantities, r_prices, r_costs, r_expiries_ms, r_closes, r_firsts, k_limits,
        k_subjects, k_sums, w_meters, w_amounts, w_carried);
    verdict := b.verdict; decided_at := b.decided_at; config_version := b.config_version; wrote := b.wrote;
    s_status := b.s_status; r_status := b.r_status; w_taken := b.w_taken;
    m_limits := b.m_limits; m_subjects := b.m_subjects; m_windows := b.m_windows;
    m_counts := b.m_counts; m_log := b.m_log; m_amounts := b.m_amounts; m_bursts := b.m_bursts;
    m_levels := b.m_levels; m_spent := b.m_spent; m_held := b.m_held; m_carried := b.m_carried;
    resets := b.resets; waited_us := b.waited_us;
    COMMIT;
    -- A repeat may find done what an earlier call has committed and nobody has flushed yet: its answer waits for that, too.
    IF wrote OR p_careful THEN
        PERFORM pg_catalog.pg_logical_emit_message(true, 'tollgate', '');
    END IF;
END
$$;

-- Registers a process and returns its number. A server of another identity than the one that wrote the rows so far has
-- restarted its transaction ids: a new epoch begins.
CREATE FUNCTION ledger.register(p_node text, p_boot uuid, p_version text, p_lease_seconds int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
AS $$
DECLARE
    number bigint;
BEGIN
    UPDATE ledger.state AS s SET epoch = s.epoch + 1, system_identifier = c.system_identifier
    FROM pg_control_system() AS c
    WHERE s.system_identifier <> c.system_identifier;
    INSERT INTO ledger.processes (node, boot, version, lease_seconds, started_at, beat_at)
    VALUES (p_node, p_boot, p_version, p_lease_seconds, clock_timestamp(), clock_timestamp())
    ON CONFLICT (boot) DO UPDATE SET beat_at = clock_timestamp()
    RETURNING id INTO number;
    RETURN number;
END
$$;

-- Renews a process's lease. No row: it was removed, and must register anew.
CREATE FUNCTION ledger.beat(p_process bigint, OUT decided_at timestamptz, OUT config_version bigint) RETURNS SETOF record
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
AS $$
    UPDATE ledger.processes AS p SET beat_at = clock_timestamp()
    FROM tollgate.config_state AS c
    WHERE p.id = p_process
    RETURNING p.beat_at, c.version
$$;

-- Ends a process: what it has left open may be expired at once.
CREATE FUNCTION ledger.stop(p_process bigint) RETURNS void
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
AS $$ UPDATE ledger.processes SET stopped_at = clock_timestamp() WHERE id = p_process AND stopped_at IS NULL $$;

-- Closes up to p_limit reservations whose process is dead or whose hard expiry has passed, as fully used, and returns how
-- many it closed. Within the grace after a start of the database it closes none, so that owners beat and settle first; the
-- caller keeps its own grace after its first contact. One caller at a time acts, and the others return 0: they would only
-- wait for each other.
CREATE FUNCTION ledger.expire(p_limit int, p_grace_seconds int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    now_   CONSTANT timestamptz := clock_timestamp();
    low    uuid;
    lowest uuid;
    gone   uuid[];
    n      int;
    b      record;
BEGIN
    IF pg_postmaster_start_time() > now_ - make_interval(secs => p_grace_seconds)
       OR NOT pg_try_advisory_xact_lock(hashtextextended('ledger.expire', 0)) THEN
        RETURN 0;
    END IF;
    SELECT s.low_water INTO low FROM ledger.state AS s;
    SELECT array_agg(q.attempt_id) INTO gone FROM (
        SELECT r.attempt_id
        FROM ledger.reservations AS r
        LEFT JOIN ledger.processes AS p ON p.id = r.process_id
        WHERE r.attempt_id >= low AND r.state = 'open'
          AND (r.expires_at < now_ OR p.id IS NULL OR p.stopped_at IS NOT NULL
               OR p.beat_at + make_interval(secs => p.lease_seconds) < now_)
        ORDER BY r.attempt_id
        LIMIT p_limit
    ) AS q;
    -- Nobody reserves with an id that is older than an hour.
    SELECT r.attempt_id INTO lowest FROM ledger.reservations AS r
    WHERE r.attempt_id >= low AND r.state = 'open' ORDER BY r.attempt_id LIMIT 1;
    lowest := least(lowest, ledger.id_at(now_ - interval '1 hour'));
    UPDATE ledger.state AS s SET low_water = lowest
    WHERE s.low_water < lowest AND s.low_water < ledger.id_at(now_ - interval '65 minutes'); -- not each time
    n := cardinality(gone);
    IF n IS NULL THEN
        RETURN 0;
    END IF;
    SELECT x.verdict, x.s_status INTO b FROM ledger.batch(0, true, true, true,
        gone, array_fill(false, ARRAY[n]), array_fill(true, ARRAY[n]), array_fill('expired'::text, ARRAY[n]),
        array_fill('reservation'::text, ARRAY[n]), '{}', '{}', array_fill(0::bigint, ARRAY[n]), array_fill(-1::bigint, ARRAY[10 * n]),
        '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}',
        '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{1}', '{}', '{}', '{}', '{}', '{}', '{}') AS x;
    IF b.verdict <> 'ok' THEN
        RETURN 0; -- another call will find them again
    END IF;
    RETURN (SELECT count(*) FROM generate_series(1, n) AS x (i) WHERE b.s_status IS NULL OR b.s_status[x.i] = 1);
END
$$;

-- Removes what nobody needs any more: released reservations after a day, full buckets and empty slots of end users after
-- seven, and processes that left nothing open after thirty. Returns how many rows went.
CREATE FUNCTION ledger.clean(p_limit int) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
AS $$
DECLARE
    now_ CONSTANT timestamptz := clock_timestamp();
    n    bigint;
    went bigint;
BEGIN
    DELETE FROM ledger.reservations AS r USING (
        SELECT attempt_id FROM ledger.reservations
        WHERE state = 'released' AND closed_at < now_ - interval '24 hours'
        ORDER BY attempt_id LIMIT p_limit FOR UPDATE SKIP LOCKED
    ) AS q
    WHERE r.attempt_id = q.attempt_id;
    GET DIAGNOSTICS went = ROW_COUNT;
    DELETE FROM ledger.meters AS m USING (
        SELECT x.limit_id, x.subject FROM ledger.meters AS x
        JOIN tollgate.limits AS l ON l.id = x.limit_id
        WHERE l.scope_type = 'end_user' AND l.kind <> 'budget' AND x.window_start = '-infinity' AND x.held = 0 AND x.level >= 0
          AND x.refilled_at < now_ - interval '7 days'
        ORDER BY 1, 2 LIMIT p_limit FOR UPDATE OF x SKIP LOCKED
    ) AS q
    WHERE m.limit_id = q.limit_id AND m.subject = q.subject AND m.window_start = '-infinity';
    GET DIAGNOSTICS n = ROW_COUNT;
    went := went + n;
    DELETE FROM ledger.processes AS p
    WHERE greatest(p.beat_at, p.stopped_at) < now_ - interval '30 days'
      AND NOT EXISTS (SELECT FROM ledger.reservations AS r WHERE r.process_id = p.id AND r.state = 'open');
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN went + n;
END
$$;

-- A bucket is refilled at the rate of its limit from its last change on. Before the rate changes it is brought up to date at
-- the old one, or the time since then would count at the new one and could repay a debt that was not repaid.
CREATE FUNCTION ledger.refill_at_old_rate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
AS $$
DECLARE
    ticks   CONSTANT bigint := ledger.ticks(old.metric, old.per_seconds);
    tick_us CONSTANT bigint := old.per_seconds * 1000000::bigint / ticks;
    now_us  bigint;
BEGIN
    PERFORM FROM ledger.meters AS m WHERE m.limit_id = old.id ORDER BY m.subject, m.window_start FOR UPDATE;
    now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    now_us := now_us - now_us % tick_us;
    UPDATE ledger.meters AS m
    SET level = least(x.level + old.amount::numeric * ((now_us - x.refilled_us) / tick_us), old.burst::numeric * ticks)::bigint,
        refilled_at = to_timestamp(0) + now_us * interval '1 microsecond'
    FROM (
        SELECT r.subject, r.window_start, r.level, (extract(epoch FROM r.refilled_at) * 1000000)::bigint AS refilled_us
        FROM ledger.meters AS r
        WHERE r.limit_id = old.id AND r.refilled_at > '-infinity'
    ) AS x
    WHERE m.limit_id = old.id AND m.subject = x.subject AND m.window_start = x.window_start AND x.refilled_us < now_us;
    RETURN new;
END
$$;
CREATE TRIGGER refill_at_old_rate BEFORE UPDATE OF amount, burst ON tollgate.limits FOR EACH ROW
    WHEN (old.kind = 'rate' AND old.amount IS NOT NULL AND (old.amount, old.burst) IS DISTINCT FROM (new.amount, new.burst))
    EXECUTE FUNCTION ledger.refill_at_old_rate();

REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA ledger FROM PUBLIC;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA ledger TO tollgate_gateway, tollgate_control;
