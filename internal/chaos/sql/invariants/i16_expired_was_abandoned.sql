-- I16: an attempt expires only when its owner died over it, or was silent for a lease that no outage of the database explains
SELECT count(*) OVER () AS violations, to_jsonb(v)::text AS sample FROM (
    SELECT e.tag, e.attempt_id, e.process_id, e.admitted_at, e.settled_at, p.stopped_at, p.beat_at, 'settled by nobody' AS why
    FROM booked AS e
    JOIN ledger.processes AS p ON p.id = e.process_id
    WHERE e.kind = 'expiry' AND p.stopped_at IS NOT NULL
      AND NOT EXISTS (SELECT FROM booked AS a WHERE a.attempt_id = e.attempt_id AND a.kind = 'late_adjustment')
    UNION ALL
    SELECT e.tag, e.attempt_id, e.process_id, e.admitted_at, e.settled_at, p.stopped_at, p.beat_at, 'its owner was heard of'
    FROM booked AS e
    JOIN ledger.processes AS p ON p.id = e.process_id
    WHERE e.kind = 'expiry' AND (p.stopped_at IS NULL OR p.stopped_at > e.settled_at)
      AND EXISTS (
          -- The last moments count for nothing: the sweep may have looked just before.
          SELECT FROM chaos.beats AS b WHERE b.process_id = e.process_id
            AND b.at > e.settled_at - make_interval(secs => p.lease_seconds) AND b.at < e.settled_at - interval '2 seconds')
    UNION ALL
    SELECT e.tag, e.attempt_id, e.process_id, e.admitted_at, e.settled_at, p.stopped_at, p.beat_at, 'owners had no time to come back'
    FROM booked AS e
    JOIN ledger.processes AS p ON p.id = e.process_id
    WHERE e.kind = 'expiry' AND p.beat_at > e.settled_at AND EXISTS (
        SELECT FROM outages AS o WHERE e.settled_at BETWEEN o.began + interval '200 milliseconds' AND o.over + interval '28 seconds'
            AND e.settled_at < o.calm)
) AS v LIMIT 10;
