-- Renews this process's lease and tells the clock and the configuration version. No row: it must register again.
SELECT decided_at, config_version FROM ledger.beat(@process::bigint)
