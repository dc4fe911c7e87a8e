-- The fleet.

-- name: processes_read
-- A process is alive while its lease is: what was silent for longer has lost its reservations.
SELECT p.boot::text AS boot, p.node, p.version, p.started_at, p.beat_at, p.stopped_at,
    p.stopped_at IS NULL AND p.beat_at + make_interval(secs => p.lease_seconds) > clock_timestamp() AS alive
FROM ledger.processes AS p
WHERE p.beat_at > clock_timestamp() - interval '1 day'
ORDER BY p.id DESC
LIMIT @count::bigint;
