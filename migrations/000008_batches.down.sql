SET LOCAL lock_timeout = '5s';

CREATE OR REPLACE FUNCTION ledger.expire(p_limit int, p_grace_seconds int) RETURNS int
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

DROP TABLE tollgate.batch_charges;
DROP TABLE tollgate.batches;
DROP TABLE tollgate.files;
