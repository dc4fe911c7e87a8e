-- What was written so far: the position in the WAL, and the versions of meters that updates have left behind.
SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS wal,
       coalesce((SELECT sum(n_tup_upd) FROM pg_stat_user_tables WHERE relname = 'meters'), 0)::bigint AS versions,
       coalesce((SELECT sum(n_dead_tup) FROM pg_stat_user_tables), 0)::bigint AS dead
