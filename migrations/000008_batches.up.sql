-- Files and batches: what organizations keep at the accounts of providers, under names of Tollgate's own, and the charges of
-- batches that are open.
SET LOCAL lock_timeout = '5s';

CREATE TABLE tollgate.files (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint NOT NULL REFERENCES tollgate.organizations,
    target_id       bigint NOT NULL REFERENCES tollgate.targets, -- whose provider has it
    upstream_id     text NOT NULL CHECK (octet_length(upstream_id) BETWEEN 1 AND 300),
    purpose         text NOT NULL CHECK (purpose IN ('batch', 'batch_output')),
    name            text NOT NULL CHECK (octet_length(name) <= 255),
    bytes           bigint NOT NULL CHECK (bytes >= 0),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at      timestamptz, -- as the provider says; NULL: it does not
    deleted_at      timestamptz,
    -- Of requests: the public name of their model, their route, and what they may use at most, summed up.
    model           text NOT NULL DEFAULT '',
    route           text NOT NULL DEFAULT '',
    requests        bigint NOT NULL DEFAULT 0,
    input_tokens    bigint NOT NULL DEFAULT 0,
    largest_input   bigint NOT NULL DEFAULT 0, -- tokens of the largest prompt
    output_tokens   bigint NOT NULL DEFAULT 0, -- of those that say how many they want
    open_outputs    bigint NOT NULL DEFAULT 0, -- answers of those that do not
    no_output       boolean NOT NULL DEFAULT false,
    cache_writes    boolean NOT NULL DEFAULT false,
    images          boolean NOT NULL DEFAULT false,
    audio           boolean NOT NULL DEFAULT false,
    audio_output    boolean NOT NULL DEFAULT false,
    estimator       int NOT NULL DEFAULT 0
);
CREATE INDEX files_organization ON tollgate.files (organization_id, id) WHERE deleted_at IS NULL;

CREATE TABLE tollgate.batches (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint NOT NULL REFERENCES tollgate.organizations,
    key_id          bigint NOT NULL REFERENCES tollgate.virtual_keys,
    target_id       bigint NOT NULL REFERENCES tollgate.targets,
    file_id         bigint NOT NULL REFERENCES tollgate.files,
    upstream_id     text CHECK (octet_length(upstream_id) BETWEEN 1 AND 300), -- NULL: not known yet
    -- creating: money may be held, and whether the provider has it is not known. open: it has. ended: settled.
    state           text NOT NULL CHECK (state IN ('creating', 'open', 'ended')),
    picture         bytea NOT NULL, -- the batch as its owner sees it, as JSON; it holds text of clients
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at      timestamptz NOT NULL, -- when its reservations do
    looked_at       timestamptz NOT NULL DEFAULT '-infinity', -- when the provider was asked for the sake of a client
    due_at          timestamptz NOT NULL, -- when somebody must look after it; who does moves it on
    looks           int NOT NULL DEFAULT 0,
    CHECK (state = 'creating' OR upstream_id IS NOT NULL)
);
CREATE INDEX batches_organization ON tollgate.batches (organization_id, id);
CREATE INDEX batches_due ON tollgate.batches (due_at) WHERE state <> 'ended';

-- The reservations of batches. They outlive the process that made them: whoever finds the batch ended settles it.
CREATE TABLE tollgate.batch_charges (
    attempt_id  uuid PRIMARY KEY,
    batch_id    bigint NOT NULL REFERENCES tollgate.batches ON DELETE CASCADE,
    from_input  bigint NOT NULL,  -- tokens of a prompt from which it applies
    unit_prices bigint[] NOT NULL -- nano-dollars per million, by the number of the unit
);
CREATE INDEX batch_charges_batch ON tollgate.batch_charges (batch_id, from_input);

GRANT SELECT, INSERT, UPDATE ON tollgate.files TO tollgate_gateway, tollgate_control;
GRANT SELECT, INSERT, UPDATE, DELETE ON tollgate.batches TO tollgate_gateway, tollgate_control;
GRANT SELECT, INSERT, DELETE ON tollgate.batch_charges TO tollgate_gateway, tollgate_control;

-- As before, except that the reservations of batches do not fall with their process.
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
          AND (r.expires_at < now_
               OR (p.id IS NULL OR p.stopped_at IS NOT NULL OR p.beat_at + make_interval(secs => p.lease_seconds) < now_)
                  AND NOT EXISTS (SELECT FROM tollgate.batch_charges AS c WHERE c.attempt_id = r.attempt_id))
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
