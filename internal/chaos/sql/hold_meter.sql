-- Locks a meter, as a session does that is half dead.
SELECT m.limit_id FROM ledger.meters AS m
JOIN tollgate.limits AS l ON l.id = m.limit_id
ORDER BY l.scope_type <> 'organization' AND @shared, md5(m.limit_id || ' ' || m.subject || @salt)
LIMIT 1
FOR UPDATE OF m;
