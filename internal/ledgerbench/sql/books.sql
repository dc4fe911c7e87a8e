-- Rows, and what is held still.
SELECT (SELECT count(*) FROM ledger.rows) + (SELECT count(*) FROM plain.rows),
       (SELECT coalesce(sum(held), 0) FROM ledger.meters)::bigint + (SELECT coalesce(sum(held), 0) FROM plain.meters)::bigint
