-- Takes one unit of each meter, in the order of their keys, if there is room in all of them; division by zero ends the
-- transaction otherwise.
WITH locked AS MATERIALIZED (
    SELECT m.limit_id, m.subject, m.spent + m.held + 1 <= m.amount AS fits
    FROM plain.meters AS m
    WHERE m.limit_id = ANY ($1::bigint[]) AND m.subject = $2
    ORDER BY m.limit_id
    FOR UPDATE
), judged AS (
    SELECT 1 / (count(*) = cardinality($1::bigint[]) AND bool_and(l.fits))::int AS one FROM locked AS l
)
UPDATE plain.meters AS m SET held = m.held + j.one
FROM locked AS l, judged AS j
WHERE m.limit_id = l.limit_id AND m.subject = l.subject
