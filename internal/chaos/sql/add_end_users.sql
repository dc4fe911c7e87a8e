-- Makes the end users of requests to come.
INSERT INTO tollgate.end_users (organization_id, name)
SELECT o.id, 'c' || n
FROM tollgate.organizations AS o, generate_series(@first::bigint, @last::bigint) AS n
WHERE o.public_id = @organization
ON CONFLICT DO NOTHING;
