-- Turns one held unit of each meter into a spent one, in the order of their keys.
WITH locked AS MATERIALIZED (
    SELECT m.limit_id, m.subject FROM plain.meters AS m
    WHERE m.limit_id = ANY ($1::bigint[]) AND m.subject = $2
    ORDER BY m.limit_id
    FOR UPDATE
)
UPDATE plain.meters AS m SET held = m.held - 1, spent = m.spent + 1
FROM locked AS l
WHERE m.limit_id = l.limit_id AND m.subject = l.subject
