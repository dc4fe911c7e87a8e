-- Ends this process's lease.
SELECT ledger.stop($1::bigint)
