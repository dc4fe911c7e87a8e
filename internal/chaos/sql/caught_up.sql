-- Whether a synchronous standby has flushed the log up to a position.
SELECT EXISTS (
    SELECT FROM pg_stat_replication WHERE sync_state = 'sync' AND flush_lsn >= @target::pg_lsn
);
