-- Ends this process's lease.
SELECT ledger.stop(@process::bigint)
