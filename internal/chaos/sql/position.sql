-- Where the log is now.
SELECT pg_current_wal_insert_lsn()::text;
