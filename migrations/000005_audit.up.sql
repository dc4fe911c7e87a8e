-- What people and policies may add to the ledger, and what must always hold of it, as views that list what breaks it. A view
-- that is empty is a proof; `tollgate ledger check` reads them all. Each is one statement, so each is one snapshot.
SET LOCAL lock_timeout = '5s';

-- Rows that book a reservation until somebody knows better. No ordinary settlement touches this index.
CREATE INDEX rows_provisional ON ledger.rows (attempt_id)
    WHERE usage_source = 'reservation' AND kind IN ('usage', 'expiry');

-- What a budget of a class counts of quantities and a cost. Units are those of governance.Unit, from 0, and classes those of
-- ledger.rows. One expression, so that it is inlined where whole ledgers are checked.
CREATE FUNCTION ledger.used(class smallint, quantities bigint[], cost bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN class = 9 THEN cost ELSE
        CASE WHEN class IN (6, 7) THEN coalesce(quantities[1], 0) + coalesce(quantities[2], 0) + coalesce(quantities[3], 0)
            + coalesce(quantities[4], 0) + coalesce(quantities[5], 0) + coalesce(quantities[6], 0) ELSE 0 END
        + CASE WHEN class IN (6, 8) THEN coalesce(quantities[7], 0) + coalesce(quantities[8], 0) + coalesce(quantities[9], 0)
            + coalesce(quantities[10], 0) ELSE 0 END
    END
$$;

-- Adds a row that adjusts base: differences of quantities, cost and budget legs, which go to the windows that the legs are
-- of. What a window that has ended thereby overspends, or no longer overspends, the present one owes or does not owe any
-- more. Meters are locked in the order of their keys, before anything else is written, as everywhere.
CREATE FUNCTION ledger.adjust(
    base ledger.rows, p_attempt uuid, p_kind text, p_source text, p_quantities bigint[], p_prices bigint[], p_cost bigint,
    g_limits bigint[], g_subjects bigint[], g_windows timestamptz[], g_classes smallint[], g_actual bigint[],
    p_actor text, p_reason text
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    g       record;
    growth  bigint;
    present timestamptz;
BEGIN
    PERFORM FROM ledger.meters AS m
    WHERE EXISTS (
        SELECT FROM unnest(g_limits, g_subjects, g_windows) AS x (limit_id, subject, window_start)
        WHERE m.limit_id = x.limit_id AND m.subject = x.subject AND m.window_start >= x.window_start)
    ORDER BY m.limit_id, m.subject, m.window_start
    FOR UPDATE;
    FOR g IN
        SELECT x.*, l.carry_debt AND l.amount IS NOT NULL AND x.window_start <> '-infinity' AS carries, l.amount
        FROM unnest(g_limits, g_subjects, g_windows, g_actual) AS x (limit_id, subject, window_start, actual)
        JOIN tollgate.limits AS l ON l.id = x.limit_id
        ORDER BY 1, 2, 3
    LOOP
        UPDATE ledger.meters AS m SET spent = m.spent + g.actual
        WHERE m.limit_id = g.limit_id AND m.subject = g.subject AND m.window_start = g.window_start
        RETURNING greatest(0, m.carried + m.spent - g.amount) - greatest(0, m.carried + m.spent - g.actual - g.amount)
        INTO growth;
        CONTINUE WHEN growth IS NULL OR growth = 0 OR NOT g.carries;
        SELECT max(m.window_start) INTO present FROM ledger.meters AS m
        WHERE m.limit_id = g.limit_id AND m.subject = g.subject AND m.window_start <= clock_timestamp();
        UPDATE ledger.meters AS m SET carried = greatest(0, m.carried + growth)
        WHERE m.limit_id = g.limit_id AND m.subject = g.subject AND m.window_start = present AND present > g.window_start;
    END LOOP;
    INSERT INTO ledger.rows (attempt_id, kind, epoch, request_id, attempt,
        organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
        key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
        route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
        outcome, usage_source, quantities, unit_prices, cost,
        leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved, leg_actual, process_id, admitted_at, settled_at,
        actor, reason, corrects_attempt, corrects_kind)
    SELECT p_attempt, p_kind, s.epoch, base.request_id, base.attempt,
        base.organization_id, base.organization_public_id, base.organization_name, base.team_id, base.team_public_id,
        base.team_name, base.key_id, base.key_public_id, base.key_name, base.user_id, base.user_public_id, base.user_name,
        base.end_user_id, base.route, base.model_id, base.model, base.provider, base.target_id, base.upstream_model,
        base.price_id, base.unpriced, base.outcome, p_source, p_quantities, p_prices, p_cost,
        g_limits, g_subjects, g_windows, g_classes, array_fill(0::bigint, ARRAY[cardinality(g_limits)]), g_actual,
        base.process_id, base.admitted_at, clock_timestamp(), p_actor, p_reason,
        base.attempt_id, base.kind
    FROM ledger.state AS s;
END
$$;

-- Resolves a row that books a reservation provisionally: writes what it was in truth as its late adjustment. p_source
-- 'reservation' confirms what was booked. False: there is no such row, or it is resolved.
CREATE FUNCTION ledger.resolve(
    p_attempt uuid, p_source text, p_quantities bigint[], p_prices bigint[], p_cost bigint, p_actor text, p_reason text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    base ledger.rows;
BEGIN
    SELECT r.* INTO base FROM ledger.rows AS r
    WHERE r.attempt_id = p_attempt AND r.kind IN ('usage', 'expiry') AND r.usage_source = 'reservation';
    IF NOT FOUND OR EXISTS (SELECT FROM ledger.rows AS r WHERE r.attempt_id = p_attempt AND r.kind = 'late_adjustment') THEN
        RETURN false;
    END IF;
    PERFORM ledger.adjust(base, p_attempt, 'late_adjustment', p_source, d.quantities, p_prices, p_cost - base.cost,
        g.limits, g.subjects, g.windows, g.classes, g.actual, p_actor, p_reason)
    FROM (
        SELECT array_agg(coalesce(x.used, 0) - coalesce(x.booked, 0) ORDER BY x.unit) AS quantities
        FROM unnest(p_quantities, base.quantities) WITH ORDINALITY AS x (used, booked, unit)
    ) AS d
    CROSS JOIN (
        SELECT coalesce(array_agg(x.limit_id), '{}') AS limits, coalesce(array_agg(x.subject), '{}') AS subjects,
            coalesce(array_agg(x.window_start), '{}') AS windows, coalesce(array_agg(x.class), '{}') AS classes,
            coalesce(array_agg(ledger.used(x.class, p_quantities, p_cost) - x.actual), '{}') AS actual
        FROM unnest(base.leg_limits, base.leg_subjects, base.leg_windows, base.leg_classes, base.leg_actual)
            AS x (limit_id, subject, window_start, class, actual)
        WHERE x.class BETWEEN 6 AND 9 AND p_source <> 'reservation'
    ) AS g;
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false; -- somebody else was faster
END
$$;

-- Corrects a row by differences, as a row of its own. What is left of the corrected row is never negative. False: there is
-- no such row, or too little is left of it.
CREATE FUNCTION ledger.correct(
    p_new uuid, p_attempt uuid, p_kind text, p_quantities bigint[], p_cost bigint, p_actor text, p_reason text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET lock_timeout = '2s'
AS $$
DECLARE
    base ledger.rows;
    short boolean;
BEGIN
    -- Corrections of one row follow each other.
    PERFORM pg_advisory_xact_lock(hashtextextended('ledger.correct ' || p_attempt, 0));
    SELECT r.* INTO base FROM ledger.rows AS r
    WHERE r.attempt_id = p_attempt AND r.kind = p_kind AND r.kind IN ('usage', 'expiry');
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Corrections copy the request of what they correct, by which they are found.
    SELECT sum(r.cost) + p_cost < 0 OR EXISTS (
        SELECT FROM ledger.rows AS q
        CROSS JOIN LATERAL unnest(q.quantities) WITH ORDINALITY AS n (quantity, unit)
        WHERE q.request_id = base.request_id AND (q.attempt_id = p_attempt OR q.corrects_attempt = p_attempt)
        GROUP BY n.unit
        HAVING sum(n.quantity) + coalesce(p_quantities[n.unit], 0) < 0
    ) INTO short
    FROM ledger.rows AS r
    WHERE r.request_id = base.request_id AND (r.attempt_id = p_attempt OR r.corrects_attempt = p_attempt);
    IF short THEN
        RETURN false;
    END IF;
    PERFORM ledger.adjust(base, p_new, 'correction', base.usage_source, p_quantities, base.unit_prices, p_cost,
        g.limits, g.subjects, g.windows, g.classes, g.actual, p_actor, p_reason)
    FROM (
        SELECT coalesce(array_agg(x.limit_id), '{}') AS limits, coalesce(array_agg(x.subject), '{}') AS subjects,
            coalesce(array_agg(x.window_start), '{}') AS windows, coalesce(array_agg(x.class), '{}') AS classes,
            coalesce(array_agg(ledger.used(x.class, p_quantities, p_cost)), '{}') AS actual
        FROM unnest(base.leg_limits, base.leg_subjects, base.leg_windows, base.leg_classes) AS x (limit_id, subject, window_start, class)
        WHERE x.class BETWEEN 6 AND 9
    ) AS g;
    RETURN true;
END
$$;

-- Gives an organization, or one of its teams or keys, money back that no single row explains. It changes no meter: raising
-- a limit is another decision.
CREATE FUNCTION ledger.credit(
    p_new uuid, p_organization bigint, p_team bigint, p_key bigint, p_units int, p_cost bigint, p_actor text, p_reason text
) RETURNS boolean
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, ledger, pg_temp
SET lock_timeout = '2s'
AS $$
    WITH added AS (
        INSERT INTO ledger.rows (attempt_id, kind, epoch, request_id, attempt,
            organization_id, organization_public_id, organization_name, team_id, team_public_id, team_name,
            key_id, key_public_id, key_name, user_id, user_public_id, user_name, end_user_id,
            route, model_id, model, provider, target_id, upstream_model, price_id, unpriced,
            outcome, usage_source, quantities, unit_prices, cost,
            leg_limits, leg_subjects, leg_windows, leg_classes, leg_reserved, leg_actual, process_id, admitted_at, settled_at,
            actor, reason)
        SELECT p_new, 'credit', s.epoch, p_new, 0,
            o.id, o.public_id, o.name, coalesce(t.id, 0), coalesce(t.public_id, ''), coalesce(t.name, ''),
            coalesce(k.id, 0), coalesce(k.public_id, ''), coalesce(k.name, ''), 0, '', '', 0,
            '', 0, '', '', 0, '', 0, false,
            'complete', 'zero', array_fill(0::bigint, ARRAY[p_units]), array_fill(0::bigint, ARRAY[p_units]), -p_cost,
            '{}', '{}', '{}', '{}', '{}', '{}', 0, c.at, c.at, p_actor, p_reason
        FROM ledger.state AS s
        CROSS JOIN (SELECT clock_timestamp() AS at OFFSET 0) AS c
        JOIN tollgate.organizations AS o ON o.id = p_organization
        LEFT JOIN tollgate.virtual_keys AS k ON k.id = p_key AND k.organization_id = o.id
        LEFT JOIN tollgate.teams AS t ON t.id = coalesce(nullif(p_team, 0), k.team_id) AND t.organization_id = o.id
        WHERE p_cost > 0 AND (p_team = 0 OR t.id IS NOT NULL) AND (p_key = 0 OR k.id IS NOT NULL)
        RETURNING 1
    )
    SELECT count(*) = 1 FROM added
$$;
REVOKE EXECUTE ON FUNCTION ledger.adjust, ledger.resolve, ledger.correct, ledger.credit FROM PUBLIC;
-- Gateways resolve by policy; what people decide comes through the control plane, with its audit row.
GRANT EXECUTE ON FUNCTION ledger.resolve TO tollgate_gateway, tollgate_control;
GRANT EXECUTE ON FUNCTION ledger.correct, ledger.credit TO tollgate_control;

CREATE SCHEMA audit;
GRANT USAGE ON SCHEMA audit TO tollgate_gateway, tollgate_control;

-- The legs of all rows, one a line.
CREATE VIEW audit.row_legs AS
SELECT r.attempt_id, r.kind, r.organization_id, r.seq, r.admitted_at, r.settled_at,
    l.limit_id, l.subject, l.window_start, l.class, l.reserved, l.actual
FROM ledger.rows AS r
CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes, r.leg_reserved, r.leg_actual)
    AS l (limit_id, subject, window_start, class, reserved, actual);

-- The legs of attempts in flight.
CREATE VIEW audit.open_legs AS
SELECT r.attempt_id, r.admitted_at, l.limit_id, l.subject, l.window_start, l.class, l.reserved
FROM ledger.reservations AS r
CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_classes, r.leg_reserved)
    AS l (limit_id, subject, window_start, class, reserved)
WHERE r.state = 'open';

-- I01: what a window says is spent is the sum of its rows.
CREATE VIEW audit.i01_window_spent AS
WITH booked AS (
    SELECT g.limit_id, g.subject, g.window_start, sum(g.actual) AS spent
    FROM audit.row_legs AS g
    WHERE g.class BETWEEN 6 AND 9
    GROUP BY g.limit_id, g.subject, g.window_start
), stored AS (
    SELECT m.limit_id, m.subject, m.window_start, m.spent FROM ledger.meters AS m WHERE m.spent <> 0
)
SELECT limit_id, subject, window_start, coalesce(s.spent, 0) AS stored, coalesce(b.spent, 0) AS booked
FROM stored AS s
FULL JOIN booked AS b USING (limit_id, subject, window_start)
WHERE coalesce(s.spent, 0) <> coalesce(b.spent, 0);

-- I02: what a window or a set of slots says is held is the sum of what open reservations hold.
CREATE VIEW audit.i02_held AS
WITH open AS (
    SELECT g.limit_id, g.subject, g.window_start, sum(g.reserved) AS held
    FROM audit.open_legs AS g
    WHERE g.class >= 6
    GROUP BY g.limit_id, g.subject, g.window_start
), stored AS (
    SELECT m.limit_id, m.subject, m.window_start, m.held FROM ledger.meters AS m WHERE m.held <> 0
)
SELECT limit_id, subject, window_start, coalesce(s.held, 0) AS stored, coalesce(o.held, 0) AS open
FROM stored AS s
FULL JOIN open AS o USING (limit_id, subject, window_start)
WHERE coalesce(s.held, 0) <> coalesce(o.held, 0);

-- I03: nothing is open long past its hard expiry or its process's death, and nothing is open where the expiry no longer
-- looks. 90 s are the promised bound; sweeps come far more often.
CREATE VIEW audit.i03_open_past_expiry AS
SELECT r.attempt_id, r.admitted_at, r.expires_at, p.node, p.beat_at, p.stopped_at,
    r.attempt_id < s.low_water AS below_low_water
FROM ledger.reservations AS r
CROSS JOIN ledger.state AS s
LEFT JOIN ledger.processes AS p ON p.id = r.process_id
WHERE r.state = 'open'
  AND (r.attempt_id < s.low_water
       OR r.expires_at < now() - interval '90 seconds'
       OR p.id IS NULL
       OR p.stopped_at < now() - interval '90 seconds'
       OR p.beat_at + make_interval(secs => p.lease_seconds) < now() - interval '90 seconds');

-- I06: an attempt has a reservation or a row that ends it, never both; what adjusts a row has one to adjust.
CREATE VIEW audit.i06_reservation_and_row AS
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
WHERE a.kind = 'correction'
  AND NOT EXISTS (SELECT FROM ledger.rows AS r WHERE r.attempt_id = a.corrects_attempt AND r.kind = a.corrects_kind);

-- One row of kind usage or expiry for an attempt. The primary key cannot say that, since it has to have the kind.
CREATE VIEW audit.one_row_per_attempt AS
SELECT e.attempt_id, e.settled_at AS expired_at, u.settled_at AS used_at, e.cost AS expiry_cost, u.cost AS usage_cost
FROM ledger.rows AS e
JOIN ledger.rows AS u ON u.attempt_id = e.attempt_id AND u.kind = 'usage'
WHERE e.kind = 'expiry';

-- I10, as far as it needs no oracle: budgets are charged what the row books. A row that books the reservation may have been
-- held differently by each limit; once it is resolved, both rows together must agree.
CREATE VIEW audit.i10_charged_as_booked AS
SELECT r.attempt_id, r.kind, g.limit_id, g.class, g.actual AS charged, ledger.used(g.class, r.quantities, r.cost) AS booked
FROM ledger.rows AS r
CROSS JOIN LATERAL unnest(r.leg_limits, r.leg_classes, r.leg_actual) AS g (limit_id, class, actual)
WHERE r.kind IN ('usage', 'expiry', 'correction') AND r.usage_source <> 'reservation' AND g.class BETWEEN 6 AND 9
  AND g.actual <> ledger.used(g.class, r.quantities, r.cost)
UNION ALL
SELECT a.attempt_id, a.kind, g.limit_id, g.class, coalesce(b.actual, 0) + g.actual,
    ledger.used(g.class, r.quantities, r.cost) + ledger.used(g.class, a.quantities, a.cost)
FROM ledger.rows AS a
JOIN ledger.rows AS r ON r.attempt_id = a.attempt_id AND r.kind IN ('usage', 'expiry')
CROSS JOIN LATERAL unnest(a.leg_limits, a.leg_subjects, a.leg_windows, a.leg_classes, a.leg_actual)
    AS g (limit_id, subject, window_start, class, actual)
LEFT JOIN LATERAL unnest(r.leg_limits, r.leg_subjects, r.leg_windows, r.leg_actual) AS b (limit_id, subject, window_start, actual)
    ON b.limit_id = g.limit_id AND b.subject = g.subject AND b.window_start = g.window_start
WHERE a.kind = 'late_adjustment' AND a.usage_source <> 'reservation' AND g.class BETWEEN 6 AND 9
  AND coalesce(b.actual, 0) + g.actual <> ledger.used(g.class, r.quantities, r.cost) + ledger.used(g.class, a.quantities, a.cost);

-- What was done to buckets during the last day, one line an event: taken by an admission, or given back (less than nothing:
-- charged on top) by what ended it. A batch settles first and admits then, at one instant.
CREATE VIEW audit.bucket_events AS
WITH legs AS (
    SELECT g.limit_id, g.subject, g.reserved, g.actual, g.admitted_at, g.settled_at
    FROM tollgate.organizations AS o
    JOIN audit.row_legs AS g ON g.organization_id = o.id AND g.settled_at > now() - interval '1 day' AND g.class < 6
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

-- The numbers of buckets, in units × ticks.
CREATE VIEW audit.buckets AS
SELECT l.id, l.amount::numeric AS amount, l.mode, l.version, l.created_at, l.updated_at,
    ledger.ticks(l.metric, l.per_seconds)::numeric AS ticks, l.burst * ledger.ticks(l.metric, l.per_seconds)::numeric AS capacity,
    ledger.ticks(l.metric, l.per_seconds) / l.per_seconds AS ticks_per_second
FROM tollgate.limits AS l
WHERE l.kind = 'rate' AND l.amount IS NOT NULL AND l.enforcement = 'exact' AND l.deleted_at IS NULL;

-- I11: in any interval a bucket admits at most its capacity and what it gained meanwhile. With S the running sum of what
-- was admitted less what was given back, and t in ticks:
-- max over j of (S_j − rate × t_j) − min over i ≤ j of (S_(i−1) − rate × t_i) ≤ capacity.
-- Debts are left out, which only makes the bound weaker. The numbers of the limit hold since it was last changed; a batch
-- may have read them just before.
CREATE VIEW audit.i11_bucket_rate AS
WITH ticked AS (
    SELECT e.limit_id, e.subject, e.at, e.step, (e.taken - e.back) * b.ticks AS taken, b.capacity,
        b.amount * floor(extract(epoch FROM e.at) * b.ticks_per_second) AS gained
    FROM audit.bucket_events AS e
    JOIN audit.buckets AS b ON b.id = e.limit_id AND b.mode = 'enforce'
        AND (b.version = 1 OR e.at > b.updated_at + interval '10 seconds')
    WHERE e.back >= 0
), summed AS (
    SELECT t.*, sum(t.taken) OVER w AS total
    FROM ticked AS t
    WINDOW w AS (PARTITION BY t.limit_id, t.subject ORDER BY t.at, t.step ROWS UNBOUNDED PRECEDING)
), bounded AS (
    SELECT s.*, (s.total - s.gained) - min(s.total - s.taken - s.gained) OVER w AS net
    FROM summed AS s
    WINDOW w AS (PARTITION BY s.limit_id, s.subject ORDER BY s.at, s.step ROWS UNBOUNDED PRECEDING)
)
SELECT limit_id, subject, at, net, capacity FROM bounded WHERE step = 1 AND net > capacity;

-- One batch's step of a bucket that is replayed: refilled, given back, taken from. The state is the level, the tick that it
-- is of, and the least level that an admission has left.
CREATE FUNCTION audit.bucket_step(state numeric[], tick numeric, back numeric, taken numeric, amount numeric, capacity numeric)
RETURNS numeric[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT ARRAY[n.level, greatest(tick, state[2]), CASE WHEN taken > 0 THEN least(state[3], n.level) ELSE state[3] END]
    FROM (
        SELECT least(capacity, back + least(capacity,
            coalesce(state[1], capacity) + amount * greatest(0, tick - coalesce(state[2], tick)))) - taken AS level
    ) AS n
$$;
CREATE AGGREGATE audit.bucket_replay(numeric, numeric, numeric, numeric, numeric) (
    SFUNC = audit.bucket_step, STYPE = numeric[], INITCOND = '{NULL,NULL,NULL}'
);

-- I12: replaying a bucket's history gives the level that is stored, and no admission left it in debt. Only buckets whose
-- whole history is known: younger than the day for which released attempts are kept, and of limits that never changed.
CREATE VIEW audit.i12_bucket_level AS
WITH young AS (
    SELECT * FROM audit.buckets WHERE version = 1 AND created_at > now() - interval '1 day'
), batches AS (
    SELECT e.limit_id, e.subject, e.at, sum(e.back) AS back, sum(e.taken) AS taken
    FROM audit.bucket_events AS e
    WHERE e.limit_id IN (SELECT id FROM young)
    GROUP BY e.limit_id, e.subject, e.at
), replayed AS (
    SELECT s.limit_id, s.subject, audit.bucket_replay(
        floor(extract(epoch FROM s.at) * b.ticks_per_second), s.back * b.ticks, s.taken * b.ticks, b.amount, b.capacity
        ORDER BY s.at) AS state
    FROM batches AS s
    JOIN young AS b ON b.id = s.limit_id
    GROUP BY s.limit_id, s.subject
), compared AS (
    SELECT r.limit_id, r.subject, m.level AS stored, r.state[3] AS lowest, least(b.capacity, r.state[1]
        + b.amount * greatest(0, floor(extract(epoch FROM m.refilled_at) * b.ticks_per_second) - r.state[2])) AS replayed
    FROM replayed AS r
    JOIN young AS b ON b.id = r.limit_id
    LEFT JOIN ledger.meters AS m ON m.limit_id = r.limit_id AND m.subject = r.subject AND m.refilled_at > '-infinity'
)
SELECT * FROM compared WHERE stored IS DISTINCT FROM replayed OR lowest < 0;

-- I13: a budget is overspent by no more than what attempts used beyond what they had reserved. Only windows that began
-- after the limit was last changed can tell.
CREATE VIEW audit.i13_budget_overshoot AS
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
SELECT w.*, coalesce(o.over, 0) AS over
FROM windows AS w
LEFT JOIN overshot AS o USING (limit_id, subject, window_start)
WHERE w.spent + w.held > w.amount + coalesce(o.over, 0);

-- I15: no negative and no absurd amount, an attempt's rows taken together included.
CREATE VIEW audit.i15_amounts AS
SELECT r.attempt_id, r.kind, r.cost, r.quantities
FROM ledger.rows AS r
WHERE abs(r.cost) > 1000000000000000 OR 1099511627776 < ANY (r.quantities) OR 0 > ANY (r.unit_prices)
   OR r.kind IN ('usage', 'expiry') AND (r.cost < 0 OR 0 > ANY (r.quantities) OR 0 > ANY (r.leg_actual) OR 0 > ANY (r.leg_reserved))
   OR r.kind = 'credit' AND r.cost > 0
   OR r.settled_at < r.admitted_at
UNION ALL
SELECT r.attempt_id, a.kind, r.cost + a.cost, NULL
FROM ledger.rows AS a
JOIN ledger.rows AS r ON r.attempt_id = a.attempt_id AND r.kind IN ('usage', 'expiry')
WHERE a.kind = 'late_adjustment' AND r.cost + a.cost < 0
UNION ALL
SELECT NULL, 'meter ' || m.limit_id || ' of ' || m.subject, m.spent, ARRAY[m.spent, m.held, m.carried]
FROM ledger.meters AS m
WHERE m.spent < 0 OR m.held < 0 OR m.carried < 0;

-- Nano-dollars of millionths, rounded half to even: the settlement arithmetic of governance.CostAt.
CREATE FUNCTION audit.half_even(millionths numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT div(millionths, 1000000) + CASE
        WHEN mod(millionths, 1000000) < 500000 THEN 0
        WHEN mod(millionths, 1000000) > 500000 THEN 1
        ELSE mod(div(millionths, 1000000), 2)
    END
$$;

-- The cost of a row, from its own quantities and unit prices, whatever the price book says today. A reservation was rounded
-- up. An adjustment makes, together with the row that it adjusts, what was used cost its own prices.
CREATE VIEW audit.row_cost AS
SELECT r.attempt_id, r.kind, r.usage_source, r.cost, audit.half_even(s.millionths) AS computed
FROM ledger.rows AS r
CROSS JOIN LATERAL (
    SELECT coalesce(sum(u.quantity::numeric * u.price), 0) AS millionths
    FROM unnest(r.quantities, r.unit_prices) AS u (quantity, price)
    WHERE u.quantity <> 0 AND u.price <> 0
) AS s
WHERE r.kind IN ('usage', 'expiry')
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

GRANT SELECT ON ALL TABLES IN SCHEMA audit TO tollgate_gateway, tollgate_control;
